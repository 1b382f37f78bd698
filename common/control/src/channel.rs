//! Frames over a byte stream: one half sends messages, the other receives them.
//! Owns the bytes of frames that are under way. Never looks into a message, never
//! waits on a clock. Both halves may be dropped out of `select!` at any await:
//! what was read or written stays counted here. `connect` and `accept` make them.

use crate::ControlError;
use crate::budget::{Budget, FREE_BYTES, Lender, Loan, borrow};
use serde::{Serialize, de::DeserializeOwned};
use std::{io, marker::PhantomData, sync::Arc};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use verbatim_proto::units::FRAME_BYTES_MAX;
use verbatim_proto::wire::{self, PREFIX_BYTES};

/// The half that sends messages of one kind.
pub struct Sender<M> {
    io: Box<dyn AsyncWrite + Send + Unpin>,
    /// Whole frames; the first `written` bytes of them are out.
    unsent: Vec<u8>,
    written: usize,
    kind: PhantomData<fn(&M)>,
}

impl<M: Serialize> Sender<M> {
    /// Sends over this stream.
    pub fn new(io: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { io: Box::new(io), unsent: Vec::new(), written: 0, kind: PhantomData }
    }

    /// Queues a message; it is out for certain only after `flush`.
    ///
    /// Once this was polled the message is queued, even if the call is then dropped.
    pub async fn send(&mut self, message: &M) -> Result<(), ControlError> {
        self.send_frame(&wire::encode(message)?).await
    }

    /// The same of one that is encoded already, with its length in front.
    pub async fn send_frame(&mut self, frame: &[u8]) -> Result<(), ControlError> {
        self.unsent.extend_from_slice(frame);
        if self.unsent.len() - self.written < UNSENT_BYTES_MAX {
            return Ok(());
        }
        self.write().await
    }

    /// Writes out every queued message.
    pub async fn flush(&mut self) -> Result<(), ControlError> {
        self.write().await?;
        self.io.flush().await.map_err(|e| ControlError::broken(&e))
    }

    /// Flushes, and says goodbye: the peer's next `recv` returns none.
    pub async fn close(&mut self) -> Result<(), ControlError> {
        self.flush().await?;
        match self.io.shutdown().await {
            // The peer was faster; there is nobody left to say goodbye to.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result.map_err(|e| ControlError::broken(&e)),
        }
    }

    async fn write(&mut self) -> Result<(), ControlError> {
        while self.written < self.unsent.len() {
            let result = self.io.write(&self.unsent[self.written..]).await;
            match result.map_err(|e| ControlError::broken(&e))? {
                0 => return Err(ControlError::broken(&io::ErrorKind::WriteZero.into())),
                bytes => self.written += bytes,
            }
        }
        self.unsent.clear();
        self.written = 0;
        Ok(())
    }
}

impl<M> std::fmt::Debug for Sender<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("unsent_bytes", &(self.unsent.len() - self.written)).finish()
    }
}

/// The half that receives messages of one kind.
pub struct Receiver<M> {
    io: Box<dyn AsyncRead + Send + Unpin>,
    /// What arrived; the first `taken` bytes of it are decoded. It grows only with what really
    /// arrives, so a frame that is announced and never sent costs nothing.
    arrived: Vec<u8>,
    taken: usize,
    /// How long the last message was.
    frame_bytes: usize,
    /// How long a message may be.
    frame_bytes_max: usize,
    lender: Lender,
    /// Memory that was lent for `arrived`, and how much.
    loans: Vec<Loan>,
    lent_bytes: usize,
    kind: PhantomData<fn() -> M>,
}

impl<M: DeserializeOwned> Receiver<M> {
    /// Receives over this stream.
    pub fn new(io: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self {
            io: Box::new(io),
            arrived: Vec::new(),
            taken: 0,
            frame_bytes: 0,
            frame_bytes_max: FRAME_BYTES_MAX,
            lender: None,
            loans: Vec::new(),
            lent_bytes: 0,
            kind: PhantomData,
        }
    }

    /// Takes no larger message from now on.
    pub(crate) fn limit(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Has the memory for long messages lent from now on.
    pub fn lend_from(&mut self, lender: Arc<dyn Budget>) {
        self.lender = Some(lender);
    }

    /// Waits for the next message; none when the peer said goodbye between two frames.
    ///
    /// A call that is dropped loses nothing: the next one goes on where it was. After an error
    /// the stream is of no more use.
    pub async fn recv(&mut self) -> Result<Option<M>, ControlError> {
        loop {
            if let Some(message) = self.arrived()? {
                return Ok(Some(message));
            }
            self.arrived.drain(..self.taken);
            self.taken = 0;
            let step = STEP_BYTES.min(PREFIX_BYTES + self.frame_bytes_max);
            self.make_room(step)?;
            let read = (&mut self.io).take(step as u64).read_buf(&mut self.arrived).await;
            if read.map_err(|e| ControlError::broken(&e))? > 0 {
                continue;
            }
            if self.arrived.is_empty() {
                return Ok(None);
            }
            return Err(ControlError::Closed { cause: "the peer stopped inside a frame".into() });
        }
    }

    /// Makes room for so many bytes more; where nothing is under way, no more room than that.
    fn make_room(&mut self, step: usize) -> Result<(), ControlError> {
        if self.arrived.is_empty() && self.arrived.capacity() > FREE_BYTES {
            self.arrived = Vec::new();
            self.loans = Vec::new();
            self.lent_bytes = 0;
        }
        self.arrived.reserve(step);
        let more = self.arrived.capacity().saturating_sub(FREE_BYTES + self.lent_bytes);
        if more > 0 {
            self.loans.push(borrow(&self.lender, more, "a long message")?);
            self.lent_bytes += more;
        }
        Ok(())
    }

    /// The next message, if all of it came with those before it.
    pub fn arrived(&mut self) -> Result<Option<M>, ControlError> {
        let rest = &self.arrived[self.taken..];
        let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let body_bytes = wire::body_bytes(*prefix, self.frame_bytes_max)?;
        let Some(body) = rest.get(..body_bytes) else { return Ok(None) };
        let message = wire::decode(body)?;
        self.frame_bytes = PREFIX_BYTES + body.len();
        self.taken += self.frame_bytes;
        Ok(Some(message))
    }

    /// How long the message was that was taken last.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }
}

impl<M> std::fmt::Debug for Receiver<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.arrived.len() - self.taken;
        f.debug_struct("Receiver").field("arrived_bytes", &bytes).finish()
    }
}

/// How much is read at a time: 64 KiB.
const STEP_BYTES: usize = 64 << 10;

/// How much is sent late at most, before `send` writes without being told to: 256 KiB.
const UNSENT_BYTES_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::Purse;
    use std::time::Duration;
    use tokio::{io::duplex, time::timeout};
    use verbatim_proto::wire::WireError;

    /// Polls a future and drops it before it is done.
    async fn poke<T: std::fmt::Debug>(future: impl Future<Output = T>) {
        timeout(Duration::from_millis(1), future).await.unwrap_err();
    }

    #[tokio::test]
    async fn messages_arrive_in_order_and_a_goodbye_is_none() {
        let (near, far) = duplex(7);
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::<String>::new(far));
        let send = async {
            for word in ["one", "", "three"] {
                sender.send(&word.to_owned()).await.unwrap();
            }
            sender.close().await.unwrap();
        };
        let receive = async {
            for word in ["one", "", "three"] {
                assert_eq!(receiver.recv().await.unwrap().unwrap(), word);
            }
            assert_eq!(receiver.recv().await, Ok(None));
        };
        tokio::join!(send, receive);
    }

    #[tokio::test]
    async fn what_came_with_a_message_is_taken_without_a_wait() {
        let (near, far) = duplex(1 << 10);
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::<u32>::new(far));
        for number in [1_u32, 2, 3] {
            sender.send(&number).await.unwrap();
        }
        sender.flush().await.unwrap();
        assert_eq!(receiver.arrived(), Ok(None), "nothing is read for it");
        assert_eq!(receiver.recv().await, Ok(Some(1)));
        assert_eq!([receiver.arrived(), receiver.arrived()], [Ok(Some(2)), Ok(Some(3))]);
        assert_eq!(receiver.arrived(), Ok(None));
    }

    #[tokio::test]
    async fn nothing_is_written_before_flush() {
        let (near, far) = duplex(1 << 10);
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::<u32>::new(far));
        sender.send(&5_u32).await.unwrap();
        poke(receiver.recv()).await;
        sender.flush().await.unwrap();
        assert_eq!(receiver.recv().await, Ok(Some(5)));
    }

    #[tokio::test]
    async fn a_frame_over_the_cap_is_refused_before_its_body_is_kept() {
        let (mut near, far) = duplex(1 << 10);
        let mut receiver = Receiver::<String>::new(far);
        near.write_all(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes()).await.unwrap();
        let bytes = FRAME_BYTES_MAX + 1;
        let expected =
            Err(ControlError::Wire(WireError::TooLarge { bytes, most: FRAME_BYTES_MAX }));
        // One that is taken would wait for its body.
        let told = tokio::time::timeout(std::time::Duration::from_secs(5), receiver.recv()).await;
        assert_eq!(told, Ok(expected));
        assert!(receiver.arrived.capacity() <= 2 * STEP_BYTES);
    }

    #[tokio::test]
    async fn an_announced_body_is_not_allocated_before_it_arrives() {
        let (mut near, far) = duplex(1 << 10);
        let mut receiver = Receiver::<String>::new(far);
        near.write_all(&(FRAME_BYTES_MAX as u32).to_le_bytes()).await.unwrap();
        poke(receiver.recv()).await;
        assert!(receiver.arrived.capacity() <= 2 * STEP_BYTES);
    }

    #[tokio::test]
    async fn the_largest_frame_passes() {
        let (near, far) = duplex(1 << 12);
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::<String>::new(far));
        let word = "x".repeat(FRAME_BYTES_MAX - 3);
        let send = async {
            sender.send(&word).await.unwrap();
            sender.flush().await.unwrap();
            sender.send(&format!("{word}x")).await.unwrap_err()
        };
        let (error, received) = tokio::join!(send, receiver.recv());
        assert!(received.unwrap().unwrap() == word);
        assert!(matches!(error, ControlError::Wire(WireError::TooLarge { .. })));
    }

    #[tokio::test]
    async fn memory_for_a_long_message_is_lent_and_given_back_after_it() {
        let (near, far) = duplex(1 << 12);
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::<String>::new(far));
        let purse = Purse::of(3 << 20);
        receiver.lend_from(Arc::new(purse.clone()));
        let word = "x".repeat(900 << 10);
        let send = async {
            sender.send(&word).await.unwrap();
            sender.flush().await.unwrap();
        };
        let ((), received) = tokio::join!(send, receiver.recv());
        assert!(received.unwrap().unwrap() == word);
        assert!(purse.left() < (3 << 20) - (800 << 10), "{} left", purse.left());
        poke(receiver.recv()).await;
        assert_eq!(purse.left(), 3 << 20);
        assert!(receiver.arrived.capacity() <= 2 * STEP_BYTES);
        // Somebody else has most of it now.
        let _loan = purse.lend(purse.left() - (300 << 10)).expect("it is there");
        let refused = tokio::select! {
            sent = sender.send(&word) => panic!("nobody takes it: {sent:?}"),
            refused = receiver.recv() => refused.expect_err("there is no memory for it"),
        };
        assert!(refused.to_string().contains("limits.memory_mb"), "{refused}");
    }

    #[tokio::test]
    async fn an_end_inside_a_frame_is_an_error() {
        for cut in 1..wire::encode(&"hello".to_owned()).unwrap().len() {
            let (mut near, far) = duplex(1 << 10);
            near.write_all(&wire::encode(&"hello".to_owned()).unwrap()[..cut]).await.unwrap();
            drop(near);
            let error = Receiver::<String>::new(far).recv().await.unwrap_err();
            assert_eq!(error.to_string(), "connection lost: the peer stopped inside a frame");
        }
    }

    #[tokio::test]
    async fn a_dropped_recv_loses_nothing() {
        let frame = wire::encode(&"hello".to_owned()).unwrap();
        let (mut near, far) = duplex(1 << 10);
        let mut receiver = Receiver::<String>::new(far);
        for byte in &frame[..frame.len() - 1] {
            near.write_all(&[*byte]).await.unwrap();
            poke(receiver.recv()).await;
        }
        near.write_all(&frame[frame.len() - 1..]).await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_dropped_flush_neither_loses_nor_repeats() {
        let (near, far) = duplex(10);
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::<String>::new(far));
        sender.send(&"a message longer than the pipe".to_owned()).await.unwrap();
        poke(sender.flush()).await;
        sender.send(&"second".to_owned()).await.unwrap();
        let receive = async { (receiver.recv().await, receiver.recv().await) };
        let (flushed, (first, second)) = tokio::join!(sender.flush(), receive);
        flushed.unwrap();
        assert_eq!(first.unwrap().unwrap(), "a message longer than the pipe");
        assert_eq!(second.unwrap().unwrap(), "second");
    }

    #[tokio::test]
    async fn bytes_that_are_no_message_are_refused() {
        let (mut near, far) = duplex(1 << 10);
        near.write_all(&[1, 0, 0, 0, 9]).await.unwrap();
        let error = Receiver::<bool>::new(far).recv().await.unwrap_err();
        assert!(matches!(error, ControlError::Wire(WireError::Malformed(_))), "{error}");
    }
}
