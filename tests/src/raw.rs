//! A session whose every message is chosen by the test: what a client says that was
//! not written by us. Owns the connection; knows nothing of links. Every answer has
//! a deadline.

use std::time::{Duration, Instant};
use verbatim_control::{ConnectOptions, Connection, ControlError, connect};
use verbatim_proto::{ClientMessage, ServerMessage};

/// How long any one answer may take; guests are slow.
pub const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A welcomed session.
pub struct Raw {
    runtime: tokio::runtime::Runtime,
    /// The session.
    pub connection: Connection,
}

impl Raw {
    /// Connects, or says why not.
    pub fn try_connect(options: &ConnectOptions) -> Result<Self, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let connection = runtime.block_on(connect(options))?;
        Ok(Self { runtime, connection })
    }

    /// Connects.
    pub fn connect(options: &ConnectOptions) -> Self {
        Self::try_connect(options).expect("connects")
    }

    /// Says something.
    pub fn say(&mut self, message: ClientMessage) {
        self.try_say(message).expect("the server listens");
    }

    /// Says something to a server that may be gone.
    pub fn try_say(&mut self, message: ClientMessage) -> Result<(), ControlError> {
        let sender = &mut self.connection.sender;
        self.runtime.block_on(async {
            sender.send(&message).await?;
            sender.flush().await
        })
    }

    /// Waits for the next message; none when the server hung up.
    pub fn next(&mut self, what: &str) -> Option<ServerMessage> {
        let heard = self.runtime.block_on(async {
            tokio::time::timeout(ANSWER_MAX, self.connection.receiver.recv()).await
        });
        heard.unwrap_or_else(|_| panic!("no {what}")).ok().flatten()
    }

    /// Waits for the answer that `wanted` takes, and drops the rest.
    pub fn hear<T>(&mut self, what: &str, wanted: impl Fn(&ServerMessage) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < ANSWER_MAX, "no {what}");
            let message = self.next(what).unwrap_or_else(|| panic!("no {what}: it hung up"));
            if let Some(answer) = wanted(&message) {
                return answer;
            }
        }
    }
}
