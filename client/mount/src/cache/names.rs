//! Files of the cache that store names for offline use. Each listing is one small file
//! with a digest over its contents and its key; it counts and is evicted like a
//! version. Facts about a source (its root, its server) stand beside the versions and
//! are never evicted. A damaged file, or one of another key, is ignored.
//! `offline_names` and `cache_origin` decide what is stored.

use super::{Cache, Key, PAGE_BYTES};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use verbatim_proto::Digest;

const MAGIC: [u8; 8] = *b"VBTMNAM3";

/// The header in front of the contents.
const HEAD_BYTES: usize = MAGIC.len() + 32;

/// The bytes that are compared at a time.
const COMPARED_BYTES: usize = 64 << 10;

/// The largest file.
const NAMES_BYTES_MAX: u64 = 512 << 20;

impl Cache {
    /// Stores names, unless the same are stored already.
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
        // Settled early: names are small, and a scan that misses them is corrected by the next.
        self.shared.settle(len);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.parent().expect("cache files are in subfolders"))?;
        let written = self.opener.replace(&path, &[&head, body]);
        if written.is_err() {
            self.shared.adjust(-(len as i64));
        }
        written
    }

    /// The stored names, if they are intact.
    pub fn load_names(&self, key: &Key) -> Option<Vec<u8>> {
        self.read_body(&self.path(key, "names"), key)
    }

    /// Stores a fact about a source. Small, so it neither counts nor is evicted: without it other
    /// users, or all, could not use an offline mount.
    pub fn store_source_fact(&self, kind: &str, key: &Key, body: &[u8]) -> io::Result<()> {
        let (path, head) = (self.source_fact_path(kind, key), header(key, body));
        let stored = self.opener.open_to_read(&path);
        match stored.is_ok_and(|file| file.is_some_and(|file| has_contents(&file, &head, body))) {
            true => Ok(()),
            false => self.opener.replace(&path, &[&head, body]),
        }
    }

    /// A stored fact about a source, if it is intact.
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

/// The header: a digest over the contents and the key.
fn header(key: &Key, body: &[u8]) -> [u8; HEAD_BYTES] {
    let Digest(digest) = Digest::of(&[&key[..], &Digest::of(body).0].concat());
    let mut head = [0; HEAD_BYTES];
    head[..MAGIC.len()].copy_from_slice(&MAGIC);
    head[MAGIC.len()..].copy_from_slice(&digest);
    head
}

/// Whether a file holds exactly this. Compares all bytes, so that damaged contents are replaced.
fn has_contents(mut file: &File, head: &[u8; HEAD_BYTES], body: &[u8]) -> bool {
    let is_as_long = file.metadata().is_ok_and(|it| it.len() == (head.len() + body.len()) as u64);
    let mut buffer = vec![0; COMPARED_BYTES.min(body.len()).max(head.len())];
    let mut next_is = |part: &[u8]| {
        let buffer = &mut buffer[..part.len()];
        file.read_exact(buffer).is_ok() && buffer == part
    };
    is_as_long && next_is(head) && body.chunks(COMPARED_BYTES).all(next_is)
}
