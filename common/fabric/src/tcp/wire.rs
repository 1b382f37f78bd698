//! The socket under a TCP link: plain, or inside TLS where somebody asked for
//! secrecy. Owns the socket and what TLS holds of either direction, at most
//! `STEP_BYTES` each. Never blocks, never shakes hands: who makes the link did.
//! Only the link in this folder calls it.

use crate::error::FabricError;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// Sealed, or taken from the socket, at a time.
const STEP_BYTES: usize = 128 << 10;

static ZEROS: [u8; 4096] = [0; 4096];

/// A connected socket.
pub(super) enum Wire {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Inside TLS.
    Sealed(Box<Sealed>),
}

/// A socket and the TLS session on it, whose handshake is done.
pub(super) struct Sealed {
    stream: TcpStream,
    tls: rustls::Connection,
    /// What of a file is to be sealed.
    outgoing: Vec<u8>,
    /// What came from the socket, and from where on TLS has not taken it.
    incoming: Vec<u8>,
    taken: usize,
    /// Whether plain bytes may wait that the socket says nothing of.
    has_more: bool,
}

impl Wire {
    /// Wraps a session on a socket.
    pub fn sealed(stream: TcpStream, mut tls: rustls::Connection) -> Self {
        // A step is given to it only when the last one is gone.
        tls.set_buffer_limit(None);
        let (outgoing, incoming) = (vec![0; STEP_BYTES], Vec::with_capacity(STEP_BYTES));
        let has_more = true;
        Self::Sealed(Box::new(Sealed { stream, tls, outgoing, incoming, taken: 0, has_more }))
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Sealed(sealed) => &sealed.stream,
        }
    }

    /// What to sleep on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain(_) => "tcp",
            Self::Sealed(_) => "tcp+tls",
        }
    }

    /// Whether files can be sent without reading them first.
    pub fn sends_from_file(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Sends some bytes; `more` says that others follow at once.
    pub fn send(&mut self, bytes: &[u8], more: bool) -> Result<usize, Errno> {
        match self {
            Self::Plain(stream) => {
                let more = if more { SendFlags::MORE } else { SendFlags::empty() };
                send(stream, bytes, more | SendFlags::NOSIGNAL)
            }
            Self::Sealed(sealed) => {
                sealed.drain()?;
                sealed.seal(bytes.len(), Some(bytes))
            }
        }
    }

    /// Sends some bytes of a file. One that shrank is filled up with zeros: the length was
    /// promised, and the digests say the rest.
    pub fn send_file(&mut self, file: &File, offset: u64, len: usize) -> Result<usize, Errno> {
        match self.send_what_is_there(file, offset, len)? {
            0 => self.send_zeros(len),
            sent => Ok(sent),
        }
    }

    /// Sends some zeros.
    pub fn send_zeros(&mut self, len: usize) -> Result<usize, Errno> {
        self.send(&ZEROS[..ZEROS.len().min(len)], false)
    }

    fn send_what_is_there(&mut self, file: &File, offset: u64, len: usize) -> Result<usize, Errno> {
        match self {
            Self::Plain(stream) => {
                let mut from = offset;
                match rustix::fs::sendfile(&*stream, file, Some(&mut from), len) {
                    sent @ (Ok(_) | Err(Errno::AGAIN | Errno::INTR)) => sent,
                    // Some file systems cannot be sent from. What else it may be, a file that
                    // cannot be read or a socket that is broken, is told again.
                    Err(_) => send_copied(stream, file, offset, len),
                }
            }
            Self::Sealed(sealed) => {
                sealed.drain()?;
                let step = len.min(STEP_BYTES);
                let read = rustix::io::pread(file, &mut sealed.outgoing[..step], offset)?;
                if read == 0 { Ok(0) } else { sealed.seal(read, None) }
            }
        }
    }

    /// Sends what TLS still holds, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Sealed(sealed) => sealed.drain().or_else(unless_full),
        }
    }

    /// Receives some bytes; `None` when there are none yet.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, FabricError> {
        match self {
            Self::Plain(stream) => receive(stream, into),
            Self::Sealed(sealed) => {
                let received = sealed.open(into)?;
                sealed.has_more = received.is_some();
                Ok(received)
            }
        }
    }

    /// Whether something waits to be sent that the link no longer knows of.
    pub fn wants_write(&self) -> bool {
        matches!(self, Self::Sealed(sealed) if sealed.tls.wants_write())
    }

    /// Whether something may have been received that the socket no longer knows of.
    pub fn has_more(&self) -> bool {
        matches!(self, Self::Sealed(sealed) if sealed.has_more)
    }

    /// Ends both directions.
    pub fn shutdown(&self) {
        // A socket that is gone already is as shut as it can be.
        let _ = self.stream().shutdown(Shutdown::Both);
    }
}

impl Sealed {
    /// Sends all that is sealed, or fails with `AGAIN` where the socket is full.
    fn drain(&mut self) -> Result<(), Errno> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut &self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
        Ok(())
    }

    /// Seals the first of these bytes, or of what was read, and sends what the socket takes.
    fn seal(&mut self, len: usize, bytes: Option<&[u8]>) -> Result<usize, Errno> {
        let bytes = bytes.unwrap_or(&self.outgoing);
        let step = &bytes[..len.min(STEP_BYTES)];
        let sealed = self.tls.writer().write(step).map_err(|_| Errno::IO)?;
        self.drain().or_else(unless_full)?;
        Ok(sealed)
    }

    /// Opens what came; `None` when no record is whole yet.
    fn open(&mut self, into: &mut [u8]) -> Result<Option<usize>, FabricError> {
        loop {
            match self.tls.reader().read(into) {
                Ok(0) => return Err(FabricError::Closed),
                Ok(opened) => return Ok(Some(opened)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(FabricError::Closed),
            }
            if self.taken == self.incoming.len() && !self.refill()? {
                return Ok(None);
            }
            let mut rest = &self.incoming[self.taken..];
            let before = rest.len();
            self.tls.read_tls(&mut rest).map_err(|error| not_sealed(&error))?;
            self.taken += before - rest.len();
            self.tls.process_new_packets().map_err(|error| not_sealed(&error))?;
        }
    }

    /// Takes more from the socket; false when it has nothing.
    fn refill(&mut self) -> Result<bool, FabricError> {
        self.incoming.resize(STEP_BYTES, 0);
        let received = receive(&self.stream, &mut self.incoming);
        self.incoming.truncate(received.as_ref().map_or(0, |got| got.unwrap_or(0)));
        self.taken = 0;
        Ok(received?.is_some())
    }
}

/// Reads some bytes of a file and sends what of them the socket takes; none at its end.
fn send_copied(stream: &TcpStream, file: &File, offset: u64, len: usize) -> Result<usize, Errno> {
    let mut bytes = vec![0; len.min(STEP_BYTES)];
    let read = rustix::io::pread(file, &mut bytes, offset)?;
    if read == 0 { Ok(0) } else { send(stream, &bytes[..read], SendFlags::NOSIGNAL) }
}

/// Receives some bytes of a socket; `None` when there are none yet.
fn receive(stream: &TcpStream, into: &mut [u8]) -> Result<Option<usize>, FabricError> {
    loop {
        match recv(stream, &mut *into, RecvFlags::empty()) {
            Ok((0, _)) => return Err(FabricError::Closed),
            Ok((received, _)) => return Ok(Some(received)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(broken(error)),
        }
    }
}

/// What an error of the socket means for its link.
pub(super) fn broken(error: Errno) -> FabricError {
    match error {
        Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => FabricError::Closed,
        other => FabricError::system("data connection failed", other),
    }
}

/// A full socket is no failure: what is left goes later.
fn unless_full(error: Errno) -> Result<(), Errno> {
    if error == Errno::AGAIN { Ok(()) } else { Err(error) }
}

/// Somebody changed what is on its way, or speaks something else.
fn not_sealed(error: &dyn std::fmt::Display) -> FabricError {
    FabricError::Protocol(format!("the encrypted link was broken into: {error}"))
}
