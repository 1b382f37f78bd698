//! What was told of folders, kept for when the server is away: one small file for each,
//! with a digest over all of it, among the versions, where it counts and goes as they
//! do; of the root of a source beside them, where it stays. What is damaged says nothing.
//! Who asks, and for what, is the business of `recall`.

use super::{Cache, Key, PAGE_BYTES};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use verbatim_proto::Digest;

const MAGIC: [u8; 8] = *b"VBTMNAM2";

/// The most that one file may hold.
const NAMES_BYTES_MAX: u64 = 512 << 20;

impl Cache {
    /// Keeps what was told, unless it is what is there.
    pub fn keep_names(&self, key: &Key, body: &[u8]) -> io::Result<()> {
        let path = self.path(key, "names");
        if let Ok(file) = File::open(&path) {
            if holds(&file, body) {
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
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.parent().expect("it is in a part of the cache"))?;
        let written = write(&path, body);
        if written.is_err() {
            self.share.add(-(len as i64));
        }
        written
    }

    /// What was told and is whole.
    pub fn names(&self, key: &Key) -> Option<Vec<u8>> {
        read(&self.path(key, "names"))
    }

    /// Keeps what the root of a source is. One for each source, and little: it neither counts nor
    /// goes, because without it nobody but who mounts could come in.
    pub fn keep_root(&self, key: &Key, body: &[u8]) -> io::Result<()> {
        let path = self.root_path(key);
        let is_there = File::open(&path).is_ok_and(|file| holds(&file, body));
        if is_there { Ok(()) } else { write(&path, body) }
    }

    /// What the root of a source was.
    pub fn root(&self, key: &Key) -> Option<Vec<u8>> {
        read(&self.root_path(key))
    }

    fn root_path(&self, key: &Key) -> PathBuf {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("root-{name}"))
    }
}

/// Whether a file is of just this.
fn holds(mut file: &File, body: &[u8]) -> bool {
    let mut head = [0; 40];
    file.read_exact(&mut head).is_ok() && head[8..] == Digest::of(body).0
}

/// Writes it aside first: whoever reads finds all of it, or what was there.
fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("names-{}", std::process::id()));
    let mut new = OpenOptions::new();
    let opened = new.write(true).create(true).truncate(true).mode(0o600).open(&aside);
    let written = opened.and_then(|mut file| {
        file.write_all(&MAGIC)?;
        file.write_all(&Digest::of(body).0)?;
        file.write_all(body)?;
        fs::rename(&aside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(NAMES_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let digest = Digest(*bytes.strip_prefix(&MAGIC)?.first_chunk()?);
    bytes.drain(..40);
    (Digest::of(&bytes) == digest).then_some(bytes)
}
