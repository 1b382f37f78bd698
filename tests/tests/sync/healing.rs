//! What no event tells is found by the comparison of a follower, whichever side has
//! the source: it is copied, logged once and counted. Takes as long as a comparison
//! that waits for the event; how it finds what is in `common/files`.

use crate::following::Following;
use crate::process::{wait_for, when};
use crate::{BOTH, Way, World, tree, write};
use std::fs;
use std::time::Duration;
use verbatim_tests::http::{get, series};

/// The longest that a difference may stay: a comparison begins every 30 s and waits 10 s for the
/// event, and the machine may be busy.
const HEAL_MAX: Duration = Duration::from_secs(90);

/// How many differences were found, as the side that has the source says.
fn healed(following: &Following) -> f64 {
    match following.way {
        Way::Down => {
            let page =
                get(following.world.serve.metrics.expect("it shows metrics"), "/metrics").body;
            series(&page, "rdma_serve_watch_healed_total").expect("it is counted")
        }
        Way::Up => following.status()["healed"].as_f64().expect("it is counted"),
    }
}

#[test]
fn a_write_through_a_hard_link_outside_of_the_source_is_healed_logged_and_counted() {
    // Side by side: most of the time each waits.
    let mut followings = BOTH.map(|way| {
        let world = World::new();
        let (file, outside) = (world.source().join("deep/file"), world.path("outside"));
        write(file.clone(), b"first");
        fs::hard_link(&file, &outside).expect("links");
        let following = Following::start(world, way);
        assert_eq!(healed(&following), 0.0, "{way:?}");
        // Younger than what was told when it began.
        std::thread::sleep(Duration::from_millis(100));
        write(outside, b"written through another name");
        following
    });
    for following in &mut followings {
        let way = following.way;
        let (source, target) = (following.world.source(), following.world.target(way));
        wait_for(&format!("{way:?}: the target has what no event told"), HEAL_MAX, || {
            let different = tree::differences(&source, &target);
            when(different, |different| different.is_empty())
        });
        let what = format!("{way:?}: one difference is counted");
        wait_for(&what, HEAL_MAX, || when(healed(following), |count| *count == 1.0));
        let line = "change found that no event told";
        let log = match way {
            Way::Down => following.world.serve.logged(line, 1),
            Way::Up => format!("{:?}", following.run.report()),
        };
        assert_eq!(log.matches(line).count(), 1, "{way:?}: {log}");
    }
}
