//! Followers of a source in which two names are exchanged, as `rdma-sync --atomic`
//! does when it is done: what is written afterwards below a folder that has
//! another's name is copied. Never changes a source at random.

use crate::following::Following;
use crate::{BOTH, World, text, tree, write};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::path::Path;

/// Exchanges what two names mean.
pub(crate) fn exchange(one: &Path, two: &Path) -> std::io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?)
}

#[test]
fn what_is_written_below_folders_that_were_exchanged_is_followed() {
    for way in BOTH {
        let world = World::new();
        let (source, outside) = (world.source(), world.path("outside"));
        let folders = [source.join("a"), source.join("b"), outside.clone()];
        for (number, folder) in folders.iter().enumerate() {
            // Two of the same size and time would be taken for the same file.
            write(folder.join("deep/file"), &tree::content(number as u64, 100 + number));
        }
        let mut following = Following::start(world, way);
        let a = source.join("a");
        for (round, other) in
            [source.join("b"), outside.clone(), source.join("b")].iter().enumerate()
        {
            exchange(&a, other).expect("exchanges");
            following.follows("an exchange of two folders");
            following.wait();
            for folder in ["a", "b"] {
                let what = format!("{way:?}: a file in {folder} behind exchange {round}");
                write(source.join(folder).join("deep/file"), what.as_bytes());
                following.follows(&what);
            }
        }
    }
}

/// A mirror that is made with `--atomic`, in the source of another mirror that follows.
#[test]
fn what_is_written_to_an_atomic_mirror_is_followed() {
    for way in BOTH {
        let world = World::new();
        let (origin, mirror) = (world.path("in/origin"), world.source().join("mirror"));
        let version = |version: &str| write(origin.join("deep/file"), version.as_bytes());
        let from = world.serve.at("in/origin");
        let ends = [from.as_str(), &text(&mirror), "--atomic"];
        let sync = |world: &World| {
            let command = world.home.command("rdma-sync", &ends);
            crate::process::Running::start(command).end().done();
        };
        version("first");
        sync(&world);
        let mut following = Following::start(world, way);
        for round in 0..3 {
            version(&format!("version {round}"));
            sync(&following.world);
            following.follows("a new version");
            following.wait();
            write(mirror.join("deep/more"), format!("by hand, {round}").as_bytes());
            following.follows("a file that was written to the mirror");
        }
    }
}
