//! Streams: files whose size the client tells last. Until then they are as long
//! as a file can be, and nothing of their last grain can be sent.

use super::WriteServer;
use crate::batch::unexpected;
use crate::digest::Digest;
use crate::units::{GRAIN_BYTES, STREAM_BYTES_MAX};
use crate::write::types::ServerEffect;
use crate::{Extent, Fault, FileId};

impl WriteServer {
    pub(super) fn end(&mut self, id: FileId, size: u64) -> Result<(), Fault> {
        let file = self.files.get_mut(&id).filter(|file| file.open && !file.discarded);
        let file = file.filter(|file| file.streaming && size < STREAM_BYTES_MAX);
        let file = file.ok_or_else(|| unexpected("end", id))?;
        let rest = Extent::new(size, STREAM_BYTES_MAX - size);
        // A file of one grain has another digest: nothing may have been sent of it before.
        let begun = file.unclaimed.bytes() < STREAM_BYTES_MAX;
        if !file.unclaimed.take(rest) || begun && size <= GRAIN_BYTES {
            return Err(unexpected("end before what it sent", id));
        }
        file.streaming = false;
        file.info.size = size;
        file.unstored_bytes -= rest.len;
        file.root.close(size);
        if size == 0 {
            file.root.insert(0, Digest::of(b""));
        }
        self.effects.push_back(ServerEffect::Sized { file: id, size });
        Ok(())
    }
}
