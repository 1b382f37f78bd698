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

    /// Says something if the server takes it within this time; whether it did. One that was not
    /// taken is lost, and so is the session.
    pub fn say_within(&mut self, message: ClientMessage, limit: Duration) -> bool {
        let sender = &mut self.connection.sender;
        let said = self.runtime.block_on(async {
            tokio::time::timeout(limit, async {
                sender.send(&message).await?;
                sender.flush().await
            })
            .await
        });
        matches!(said, Ok(Ok(())))
    }

    /// Waits for the next message; none when the server hung up.
    #[track_caller]
    pub fn next(&mut self, what: &str) -> Option<ServerMessage> {
        self.next_behind(what, None)
    }

    /// The same, of one who heard this message last.
    #[track_caller]
    fn next_behind(&mut self, what: &str, last: Option<&ServerMessage>) -> Option<ServerMessage> {
        let heard = self.runtime.block_on(async {
            tokio::time::timeout(ANSWER_MAX, self.connection.receiver.recv()).await
        });
        let limit_s = ANSWER_MAX.as_secs();
        let heard = heard.unwrap_or_else(|_| {
            panic!("the server says nothing for {limit_s} s; wanted: {what}; heard last: {last:?}")
        });
        heard.ok().flatten()
    }

    /// Waits for the answer that `wanted` takes, and drops the rest.
    #[track_caller]
    pub fn hear<T>(&mut self, what: &str, wanted: impl Fn(&ServerMessage) -> Option<T>) -> T {
        let (begin, limit_s) = (Instant::now(), ANSWER_MAX.as_secs());
        let mut last = None;
        loop {
            let late = begin.elapsed() >= ANSWER_MAX;
            assert!(!late, "the server sends no {what} within {limit_s} s; heard last: {last:?}");
            let message = self.next_behind(what, last.as_ref());
            let message = message.unwrap_or_else(|| {
                panic!("the server hung up before it sent a {what}; heard last: {last:?}")
            });
            if let Some(answer) = wanted(&message) {
                return answer;
            }
            last = Some(message);
        }
    }
}
