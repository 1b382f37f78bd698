//! What was told of folders, kept for when the server is away: one small file for each,
//! with a digest over all of it and what it is kept under, among the versions, where it
//! counts and goes as they do; of the root of a source beside them, where it stays, and
//! which server that is. What is damaged, or of something else, says nothing. Who asks,
//! and for what, is the business of `offline_names` and `cache_origin`.

use super::{Cache, Key, PAGE_BYTES};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use verbatim_proto::Digest;

const MAGIC: [u8; 8] = *b"VBTMNAM3";

/// What stands before what was told.
const HEAD_BYTES: usize = MAGIC.len() + 32;

/// How much is compared at a time.
const COMPARED_BYTES: usize = 64 << 10;

/// The most that one file may hold.
const NAMES_BYTES_MAX: u64 = 512 << 20;

impl Cache {
    /// Keeps what was told, unless it is what is there.
    pub fn store_names(&self, key: &Key, body: &[u8]) -> io::Result<()> {
        let path = self.path(key, "names");
        let head = header(key, body);
        if let Ok(Some(file)) = self.opener.open_to_read(&path)
            && has_contents(&file, &head, body)
        {
            super::eviction::touch(&file);
            return Ok(());
        }
        if let Ok(old) = fs::symlink_metadata(&path) {
            fs::remove_file(&path)?;
            self.shared.adjust(-((old.blocks() * 512) as i64));
        }
        let len = (body.len() as u64 + HEAD_BYTES as u64).next_multiple_of(PAGE_BYTES);
        if !self.make_room(None, len) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // They are little, and one that is not found while it is written is found the next time.
        self.shared.settle(len);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.parent().expect("it is in a part of the cache"))?;
        let written = self.opener.replace(&path, &[&head, body]);
        if written.is_err() {
            self.shared.adjust(-(len as i64));
        }
        written
    }

    /// What was told and is whole.
    pub fn load_names(&self, key: &Key) -> Option<Vec<u8>> {
        self.read_body(&self.path(key, "names"), key)
    }

    /// Keeps one thing of a source beside the versions. Little: it neither counts nor goes, because
    /// without it nobody but who mounts could come in, or nobody at all.
    pub fn store_source_fact(&self, kind: &str, key: &Key, body: &[u8]) -> io::Result<()> {
        let (path, head) = (self.source_fact_path(kind, key), header(key, body));
        let there = self.opener.open_to_read(&path);
        match there.is_ok_and(|file| file.is_some_and(|file| has_contents(&file, &head, body))) {
            true => Ok(()),
            false => self.opener.replace(&path, &[&head, body]),
        }
    }

    /// What was kept of it, and is whole.
    pub fn load_source_fact(&self, kind: &str, key: &Key) -> Option<Vec<u8>> {
        self.read_body(&self.source_fact_path(kind, key), key)
    }

    fn source_fact_path(&self, kind: &str, key: &Key) -> PathBuf {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{kind}-{name}"))
    }

    fn read_body(&self, path: &Path, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.opener.open_to_read(path).ok()??;
        file.take(NAMES_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let body = bytes.get(HEAD_BYTES..)?;
        if bytes[..HEAD_BYTES] != header(key, body) {
            return None;
        }
        bytes.drain(..HEAD_BYTES);
        Some(bytes)
    }
}

/// What stands before what was told: a digest over it and over what it is kept under.
fn header(key: &Key, body: &[u8]) -> [u8; HEAD_BYTES] {
    let Digest(digest) = Digest::of(&[&key[..], &Digest::of(body).0].concat());
    let mut head = [0; HEAD_BYTES];
    head[..MAGIC.len()].copy_from_slice(&MAGIC);
    head[MAGIC.len()..].copy_from_slice(&digest);
    head
}

/// Whether a file is of just this. All of it is looked at: what is damaged must not stay in the
/// place of what is good.
fn has_contents(mut file: &File, head: &[u8; HEAD_BYTES], body: &[u8]) -> bool {
    let is_as_long = file.metadata().is_ok_and(|it| it.len() == (head.len() + body.len()) as u64);
    let mut there = vec![0; COMPARED_BYTES.min(body.len()).max(head.len())];
    let mut next_is = |part: &[u8]| {
        let there = &mut there[..part.len()];
        file.read_exact(there).is_ok() && there == part
    };
    is_as_long && next_is(head) && body.chunks(COMPARED_BYTES).all(next_is)
}
