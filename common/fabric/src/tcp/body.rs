//! What a frame carries, and where it is sent from: the buffer of an own write, or
//! registered memory, of which files are sent without being read. Called by `link`.

use super::wire::Wire;
use crate::memory::{Buffer, Memory, Part};
use rustix::io::Errno;
use std::collections::HashMap;

/// What a frame carries.
pub(super) enum Body {
    None,
    /// The buffer of an own write.
    Own(u64),
    /// What the peer asked for, from this offset of the memory.
    Registered(Memory, u64),
    /// Zeros for the rest of a body of which no more could be sent, and why.
    Zeros(Errno),
}

impl Body {
    /// Sends its next bytes, from `at` to at most `end`; own writes are in `writes`.
    pub fn send(
        &self,
        wire: &mut Wire,
        writes: &HashMap<u64, Buffer>,
        at: usize,
        end: usize,
    ) -> Result<usize, Errno> {
        match self {
            Self::None => Ok(0),
            Self::Own(ticket) => {
                let buffer = &writes[ticket];
                match buffer.part(at, end) {
                    Part::File(file, offset, len) => wire.send_file(file, offset, len),
                    Part::Memory(len) => wire.send(&buffer[at..at + len], false),
                }
            }
            Self::Registered(Memory::File(window), begin) => {
                wire.send_file(window.file(), window.offset() + begin + at as u64, end - at)
            }
            Self::Registered(Memory::Gathered(slot, from_files), begin) => {
                let begin = *begin as usize;
                match from_files.part(begin + at, begin + end) {
                    Part::File(file, offset, len) => wire.send_file(file, offset, len),
                    Part::Memory(len) => {
                        slot.with(begin + at, len, |bytes| wire.send(bytes, false))
                    }
                }
            }
            Self::Registered(Memory::Staged(slot) | Memory::Upload(slot), begin) => {
                slot.with(*begin as usize + at, end - at, |bytes| wire.send(bytes, false))
            }
            Self::Zeros(_) => wire.send_zeros(end - at),
            // No peer may read it, so nobody finds it.
            Self::Registered(Memory::Spot(_), _) => Err(rustix::io::Errno::ACCESS),
        }
    }
}
