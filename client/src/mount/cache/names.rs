//! What was told of folders, kept for when the server is away: one small file for each,
//! with a digest over all of it, among the versions, where it counts and goes as they
//! do. What is damaged says nothing. Who asks, and for what, is the business of `recall`.

use super::{Cache, Key, PAGE_BYTES};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use verbatim_proto::Digest;

const MAGIC: [u8; 8] = *b"VBTMNAM2";

/// The most that one file may hold.
const NAMES_BYTES_MAX: u64 = 512 << 20;

impl Cache {
    /// Keeps what was told, unless it is what is there.
    pub fn keep_names(&self, key: &Key, body: &[u8]) -> io::Result<()> {
        let Digest(digest) = Digest::of(body);
        let path = self.path(key, "names");
        if let Ok(file) = File::open(&path) {
            let mut head = [0; 40];
            if (&file).read_exact(&mut head).is_ok() && head[8..] == digest {
                super::room::touch(&file);
                return Ok(());
            }
            let old = file.metadata().map_or(0, |found| found.blocks() * 512);
            fs::remove_file(&path)?;
            self.share.add(-(old as i64));
        }
        let len = (body.len() as u64 + 40).next_multiple_of(PAGE_BYTES);
        if !self.make_room(None, len) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // They are little, and one that is not found while it is written is found the next time.
        self.share.settle(len);
        let aside = path.with_extension(format!("names-{}", std::process::id()));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.parent().expect("it is in a part of the cache"))?;
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)
            .and_then(|mut file| {
                file.write_all(&MAGIC)?;
                file.write_all(&digest)?;
                file.write_all(body)?;
                fs::rename(&aside, &path)
            });
        if written.is_err() {
            let _ = fs::remove_file(&aside);
            self.share.add(-(len as i64));
        }
        written
    }

    /// What was told and is whole.
    pub fn names(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = File::open(self.path(key, "names")).ok()?;
        file.take(NAMES_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let digest = Digest(*bytes.strip_prefix(&MAGIC)?.first_chunk()?);
        bytes.drain(..40);
        (Digest::of(&bytes) == digest).then_some(bytes)
    }
}
