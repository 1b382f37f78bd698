//! The memory that a session keeps for its client is counted and bounded: sessions without a
//! socket, as in `tests`.

use super::*;
use crate::limits::fair_pool::FairPool;
use verbatim_proto::Look;
use verbatim_proto::message::Entry;

/// Paths of one stat request, whose answers take about as many KiB.
const PATHS: usize = 100;

/// A client of a server that keeps so many bytes for all clients; `data/0` and the following are
/// symlinks with long targets.
fn with_memory(bytes: usize) -> Scene {
    let scene = Scene::sharing(|_| (), |services| services.shares.memory = FairPool::new(bytes));
    for number in 0..PATHS {
        let target = "x".repeat(1000);
        std::os::unix::fs::symlink(target, scene.data().join(number.to_string())).expect("a link");
    }
    scene
}

impl Scene {
    fn looks_far(&mut self, request: u32) -> Result<(), Fault> {
        let paths = (0..PATHS).map(|number| path(&format!("data/{number}"))).collect();
        self.say(ClientMessage::Stat { request, look: Look { paths, follow: false } })
    }

    /// Runs jobs and sends their answers, until nothing happens before the client reads.
    async fn works(&mut self, jobs: usize) {
        let all_but = async {
            while self.session.limits.under_way() > jobs {
                let event = self.events.recv().await.expect("jobs tell what became of them");
                assert!(self.session.event(event).is_ok(), "it goes on");
            }
        };
        tokio::time::timeout(SOON, all_but).await.expect("soon");
    }

    async fn answers(&mut self) -> Vec<Result<Entry, Fault>> {
        self.hear(|message| match message {
            ServerMessage::Stated { answers, .. } => Some(answers),
            _ => None,
        })
        .await
    }
}

#[tokio::test]
async fn a_client_is_not_read_while_its_answers_are_unread() {
    let mut scene = with_memory(64 << 20);
    let mut asked = 0;
    while scene.session.accepts_requests() {
        scene.looks_far(asked).expect("it may ask");
        scene.works(0).await;
        asked += 1;
        assert!(asked < 100, "100 KiB each, and no end");
    }
    assert!((20..40).contains(&asked), "{asked} answers of 100 KiB");
    assert!(scene.session.client.view.memory_bytes() > 1 << 20, "what is unread is counted");
    // Jobs that it asked for already do not start.
    for request in 0..40 {
        scene.looks_far(asked + request).expect("it may ask");
    }
    let idle = tokio::time::timeout(Duration::from_millis(300), scene.events.recv()).await;
    assert!(idle.is_err(), "a job was done whose answer nobody reads");
    for _ in 0..asked + 40 {
        assert_eq!(scene.answers().await.len(), PATHS);
    }
    assert!(scene.session.accepts_requests());
    assert_eq!(scene.session.client.view.memory_bytes(), 0);
}

#[tokio::test]
async fn answers_for_which_there_is_no_memory_end_their_session_and_no_other() {
    let mut scene = with_memory(1 << 20);
    let mut other = scene.again();
    let ends = async {
        loop {
            scene.looks_far(0)?;
            let event = scene.events.recv().await.expect("a job tells what became of it");
            let answered = scene.session.event(event);
            answered.map_err(|end| match end {
                End::Refused(fault) => fault,
                _ => panic!("it hung up"),
            })?;
        }
    };
    let ended: Result<(), Fault> = tokio::time::timeout(SOON, ends).await.expect("soon");
    let fault = ended.expect_err("it is refused");
    assert_eq!(fault.code, Code::Limit);
    assert!(fault.text.contains("limits.memory_mb"), "{fault}");
    other.looks_far(0).expect("another session of it goes on");
    assert_eq!(other.answers().await.len(), PATHS);
}
