//! The proof that a new link carries data: a page with a random word in it, which
//! the peer registers and tells over the control connection, is read over the link
//! and compared. A page, because it takes a packet of the largest size: a path that
//! drops those, and lets small ones pass, must not be trusted. The server offers,
//! the client proves, before it gives the link work.

use crate::domain::Domain;
use crate::error::FabricError;
use crate::link::{Completion, Link, Op, RemoteRange, Ticket};
use crate::memory::{Buffer, Memory, SharedSlot, random_u64};
use std::time::{Duration, Instant};

/// Bytes that are read: one packet at the largest MTU.
pub const PROOF_PAGE_BYTES: usize = 4096;

/// Bytes of a proof on the wire.
pub const PROOF_BYTES: usize = 32;

/// How long a link may take to be proven. A device that gets no answer gives up sooner.
pub const PROOF_TIME_MAX: Duration = Duration::from_secs(5);

/// Between two looks at a link that is being proven.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Where the page is, and the word that fills it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    from: RemoteRange,
    word: [u8; 16],
}

impl Proof {
    /// Registers a page that a peer may read; it stays until the domain is gone.
    pub fn offer(domain: &dyn Domain) -> Result<Self, FabricError> {
        let mut word = [0; 16];
        word[..8].copy_from_slice(&random_u64()?.to_be_bytes());
        word[8..].copy_from_slice(&random_u64()?.to_be_bytes());
        let slot = SharedSlot::new(PROOF_PAGE_BYTES)?;
        slot.copy_in(0, &word.repeat(PROOF_PAGE_BYTES / word.len()));
        let region = domain.register(Memory::Staged(slot))?;
        Ok(Self { from: RemoteRange { key: region.key, address: region.base }, word })
    }

    /// The key of the page.
    pub fn key(&self) -> u64 {
        self.from.key
    }

    /// The proof as it travels; numbers are big-endian.
    pub fn to_bytes(&self) -> [u8; PROOF_BYTES] {
        let mut bytes = [0; PROOF_BYTES];
        bytes[..8].copy_from_slice(&self.from.key.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.from.address.to_be_bytes());
        bytes[16..].copy_from_slice(&self.word);
        bytes
    }

    /// Reads a proof that came from a peer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FabricError> {
        let wrong = || FabricError::Protocol("the proof of a link cannot be read".into());
        let bytes: &[u8; PROOF_BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let number =
            |at: usize| bytes[at..at + 8].iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        let mut word = [0; 16];
        word.copy_from_slice(&bytes[16..]);
        Ok(Self { from: RemoteRange { key: number(0), address: number(8) }, word })
    }

    /// Reads the page over a link that has nothing else to do. Blocks, for so long at most.
    pub fn check(&self, link: &mut dyn Link, time_max: Duration) -> Result<(), FabricError> {
        let begin = Instant::now();
        let mut into = Buffer::new(PROOF_PAGE_BYTES)?;
        into.set_len(PROOF_PAGE_BYTES);
        let op = Op::Read { from: self.from, into };
        link.submit(Ticket(0), op).map_err(|_| FabricError::Limit("a new link is full".into()))?;
        let mut completions = Vec::new();
        let read = loop {
            link.poll(&mut completions).map_err(|error| unproven(link, &error))?;
            match completions.pop() {
                Some(Completion::Done { buffer, result, .. }) => {
                    result.map_err(|error| unproven(link, &error))?;
                    break buffer;
                }
                Some(Completion::Notified { .. }) => {
                    return Err(FabricError::Protocol("a notification of nothing".into()));
                }
                None if begin.elapsed() > time_max => {
                    let text = format!("no answer in {} s", time_max.as_secs_f32());
                    return Err(unproven(link, &FabricError::Limit(text)));
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        if read.chunks(self.word.len()).all(|word| word == self.word) {
            return Ok(());
        }
        let hint = "the address of the other side may belong to two machines";
        let what = format!("{} does not work", link.transport());
        Err(FabricError::device(what, "a page read over it is not what the peer has", hint))
    }
}

/// Why a link that could be made does not carry data.
fn unproven(link: &dyn Link, cause: &FabricError) -> FabricError {
    let what = format!("{} does not work: reading a page over it", link.transport());
    let hint = "check that the two ports reach each other: ibv_rc_pingpong, firewalls (UDP 4791), \
                and that switches pass the MTU";
    FabricError::device(what, cause.to_string(), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::SoftDomain;
    use crate::tcp::TcpLink;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    fn ends(domain: &Arc<SoftDomain>) -> (TcpLink, TcpLink) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
        let (far, _) = listener.accept().expect("accepts");
        let near = TcpLink::new(near, SoftDomain::new()).expect("link");
        (near, TcpLink::new(far, domain.clone()).expect("link"))
    }

    /// Proves over a link whose far end is driven by a thread.
    fn check(proof: &Proof, domain: &Arc<SoftDomain>) -> Result<(), FabricError> {
        let (mut near, mut far) = ends(domain);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let serve = std::thread::spawn(move || {
            while stopped.try_recv().is_err() && far.poll(&mut Vec::new()).is_ok() {
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let checked = proof.check(&mut near, Duration::from_secs(20));
        let _ = stop.send(());
        drop(near);
        serve.join().expect("the far end ends");
        checked
    }

    #[test]
    fn a_link_that_reads_the_word_is_proven() {
        let domain = SoftDomain::new();
        let proof = Proof::offer(domain.as_ref()).expect("offers");
        let told = Proof::from_bytes(&proof.to_bytes()).expect("travels");
        assert_eq!(told, proof);
        assert!(Proof::from_bytes(&proof.to_bytes()[1..]).is_err(), "too short");
        assert_eq!(check(&told, &domain), Ok(()));
        assert_ne!(proof.word, Proof::offer(domain.as_ref()).expect("offers").word, "random");
    }

    #[test]
    fn a_link_that_reads_something_else_is_not() {
        let domain = SoftDomain::new();
        let mut proof = Proof::offer(domain.as_ref()).expect("offers");
        proof.word[15] ^= 1;
        let error = check(&proof, &domain).expect_err("another word");
        assert!(error.to_string().contains("is not what the peer has"), "{error}");
        proof.from.key ^= 1;
        let error = check(&proof, &domain).expect_err("no such key");
        assert!(error.to_string().starts_with("tcp does not work: reading a page"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("4791")), "{error:?}");
    }

    #[test]
    fn a_link_without_an_answer_is_given_up_in_time() {
        let domain = SoftDomain::new();
        let proof = Proof::offer(domain.as_ref()).expect("offers");
        // Nobody drives the far end.
        let (mut near, _far) = ends(&domain);
        let begin = Instant::now();
        let error = proof.check(&mut near, Duration::from_millis(50)).expect_err("no answer");
        assert!(error.to_string().ends_with("no answer in 0.05 s"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10), "it waited too long");
    }
}
