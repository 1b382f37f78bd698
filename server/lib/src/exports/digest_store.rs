//! The database of the digest cache: rows of digests, their order of insertion, and totals of
//! both. Owns the row formats and every call into redb, checks each row it reads, and turns a
//! panic of redb into an error. It never retries and starts no thread: `digest_cache` decides
//! how to handle a failure.

use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, Table, TableDefinition, WriteTransaction,
};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use tracing::warn;
use verbatim_files::Identity;
use verbatim_proto::Digest;

/// One open database.
pub(crate) struct Store {
    /// The entries since the last change: beginning to read takes longer than reading. Before
    /// `database`, so that nobody reads any more when that is closed.
    entries: RwLock<Entries>,
    database: Database,
    /// `None` in memory.
    pub(crate) path: Option<PathBuf>,
    pub(crate) size_bytes: u64,
}

/// One change to the tables.
pub(crate) enum Change {
    /// Stores the digests of a window.
    Put { key: Identity, window: u64, digests: Vec<Digest> },
    /// Removes all windows of an identity.
    Forget { key: Identity },
}

impl Store {
    /// Opens the database in `dir`, a fresh one where that is corrupt, and one in memory where
    /// neither works.
    pub(crate) fn open(dir: &Path, size_bytes: u64) -> Option<Self> {
        let path = dir.join(FILE_NAME);
        let cause = match Self::in_file(&path, size_bytes) {
            Ok(store) => return Some(store),
            Err(error) => error,
        };
        let path_text = path.display();
        if matches!(cause, redb::Error::DatabaseAlreadyOpen) {
            let path = path_text;
            warn!(%path, %cause, "digest cache is held by another process; using one in memory");
            return Self::in_memory(size_bytes);
        }
        if move_aside(&path, &cause)
            && let Ok(store) = Self::in_file(&path, size_bytes)
        {
            let (path, moved_to) = (path_text, CORRUPT_NAME);
            warn!(%path, %cause, moved_to, "digest cache is corrupt; starting afresh");
            return Some(store);
        }
        warn!(path = %path_text, %cause, "cannot open the digest cache; using one in memory");
        Self::in_memory(size_bytes)
    }

    /// Makes an empty database in memory, with a bound of its own.
    pub(crate) fn in_memory(size_bytes: u64) -> Option<Self> {
        let size_bytes = size_bytes.min(MEMORY_BYTES_MAX);
        let made = catch_panic(|| {
            let mut builder = Builder::new();
            builder.set_cache_size(MEMORY_CACHE_BYTES);
            let database = builder.create_with_backend(InMemoryBackend::new())?;
            Self::checked(database, None, size_bytes)
        });
        made.inspect_err(
            |cause| warn!(%cause, "cannot make a digest cache in memory; going without"),
        )
        .ok()
    }

    /// Opens the file and checks all of it, if that takes less than seconds: redb trusts the
    /// pages it reads later on, and a broken pointer between them could lead it in circles.
    fn in_file(path: &Path, size_bytes: u64) -> Result<Self, redb::Error> {
        catch_panic(|| {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir)?;
            }
            let mut database = Builder::new().set_cache_size(FILE_CACHE_BYTES).create(path)?;
            if std::fs::metadata(path)?.len() <= CHECKED_BYTES_MAX {
                database.check_integrity()?;
            }
            Self::checked(database, Some(path.into()), size_bytes)
        })
    }

    /// Makes the tables where there are none, and compares the books with them.
    fn checked(
        database: Database,
        path: Option<PathBuf>,
        size_bytes: u64,
    ) -> Result<Self, redb::Error> {
        let transaction = database.begin_write()?;
        let tables = Tables::open(&transaction)?;
        let (entries, order) = (tables.entries.len()?, tables.order.len()?);
        if entries != tables.totals.entries || order != entries {
            return Err(damaged("its books do not match its tables"));
        }
        drop(tables);
        transaction.commit()?;
        let entries = RwLock::new(entries_of(&database)?);
        Ok(Self { entries, database, path, size_bytes })
    }

    /// Finds the digests of a window; a row that is not intact is not there.
    pub(crate) fn read(
        &self,
        key: &Identity,
        window: u64,
    ) -> Result<Option<Vec<Digest>>, redb::Error> {
        let key = row_key(key, window);
        let row = self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&key)?;
        Ok(row.and_then(|row| decode_row(&key, row.value())).map(|(_, digests)| digests))
    }

    /// Makes changes in one transaction, and evicts the oldest entries that are over the bound.
    pub(crate) fn write(
        &self,
        changes: &[Change],
        durability: Durability,
    ) -> Result<Totals, redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(durability)?;
        let mut tables = Tables::open(&transaction)?;
        for change in changes {
            match change {
                Change::Put { key, window, digests } => {
                    tables.insert(&row_key(key, *window), digests)?;
                }
                Change::Forget { key } => tables.forget(key)?,
            }
        }
        tables.evict(self.size_bytes)?;
        let totals = tables.close()?;
        transaction.commit()?;
        let entries = entries_of(&self.database)?;
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
        Ok(totals)
    }
}

/// The entries as a read transaction sees them, and that transaction.
type Entries = ReadOnlyTable<&'static RowKey, &'static [u8]>;

fn entries_of(database: &Database) -> Result<Entries, redb::Error> {
    Ok(database.begin_read()?.open_table(ENTRIES)?)
}

/// The tables of one write transaction, and the books about them.
struct Tables<'t> {
    entries: Table<'t, &'static RowKey, &'static [u8]>,
    order: Table<'t, u64, &'static RowKey>,
    metadata: Table<'t, &'static str, &'static [u8]>,
    totals: Totals,
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        let metadata = transaction.open_table(METADATA)?;
        let totals = match metadata.get(TOTALS)? {
            Some(row) => Totals::decode(row.value()).ok_or_else(|| damaged("bad books"))?,
            None => Totals::default(),
        };
        let entries = transaction.open_table(ENTRIES)?;
        Ok(Self { entries, order: transaction.open_table(ORDER)?, metadata, totals })
    }

    fn close(mut self) -> Result<Totals, redb::Error> {
        self.metadata.insert(TOTALS, self.totals.encode().as_slice())?;
        Ok(self.totals)
    }

    fn insert(&mut self, key: &RowKey, digests: &[Digest]) -> Result<(), redb::Error> {
        self.remove(key)?;
        let sequence = self.totals.next_sequence;
        let row = encode_row(key, sequence, digests);
        self.entries.insert(key, row.as_slice())?;
        self.order.insert(sequence, key)?;
        self.totals.next_sequence += 1;
        self.totals.entries += 1;
        self.totals.bytes += stored_bytes(&row);
        Ok(())
    }

    /// Removes a window, and says whether it was there.
    fn remove(&mut self, key: &RowKey) -> Result<bool, redb::Error> {
        let Some(row) = self.entries.remove(key)? else { return Ok(false) };
        let (sequence, _) = decode_row(key, row.value()).ok_or_else(|| damaged("bad row"))?;
        self.order.remove(sequence)?;
        self.totals.entries = self.totals.entries.saturating_sub(1);
        self.totals.bytes = self.totals.bytes.saturating_sub(stored_bytes(row.value()));
        Ok(true)
    }

    fn forget(&mut self, key: &Identity) -> Result<(), redb::Error> {
        let (first, last) = (row_key(key, 0), row_key(key, u64::MAX));
        let mut windows = Vec::new();
        for row in self.entries.range::<&RowKey>(&first..=&last)? {
            windows.push(*row?.0.value());
        }
        for window in windows {
            self.remove(&window)?;
        }
        Ok(())
    }

    fn evict(&mut self, size_bytes: u64) -> Result<(), redb::Error> {
        while self.totals.bytes > size_bytes {
            let oldest = self.order.first()?.map(|(_, key)| *key.value());
            let oldest = oldest.ok_or_else(|| damaged("it is over its bound and empty"))?;
            if !self.remove(&oldest)? {
                return Err(damaged("its order names an entry it does not have"));
            }
        }
        Ok(())
    }
}

/// The books: what the tables hold, without walking them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    next_sequence: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

impl Totals {
    fn encode(self) -> Vec<u8> {
        let mut row = [self.next_sequence, self.entries, self.bytes].map(u64::to_be_bytes).concat();
        row.extend(checksum(&[&row]));
        row
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let (numbers, sum) = row.split_last_chunk()?;
        let (&[next_sequence, entries, bytes], []) = numbers.as_chunks() else { return None };
        (*sum == checksum(&[numbers])).then_some(Self {
            next_sequence: u64::from_be_bytes(next_sequence),
            entries: u64::from_be_bytes(entries),
            bytes: u64::from_be_bytes(bytes),
        })
    }
}

/// A file's identity and the number of a window: the windows of a file are neighbours.
type RowKey = [u8; 56];

fn row_key(key: &Identity, window: u64) -> RowKey {
    let Identity { file_system, inode, born_ns, size, mtime_ns, ctime_ns } = *key;
    let (born, mtime, ctime) = (born_ns as u64, mtime_ns as u64, ctime_ns as u64);
    let mut row = [0; size_of::<RowKey>()];
    let fields = [file_system, inode, born, size, mtime, ctime, window];
    for (place, field) in row.as_chunks_mut().0.iter_mut().zip(fields) {
        *place = field.to_be_bytes();
    }
    row
}

/// A row is its sequence number, a checksum, and the digests.
fn encode_row(key: &RowKey, sequence: u64, digests: &[Digest]) -> Vec<u8> {
    let sequence = sequence.to_be_bytes();
    let digests: Vec<u8> = digests.iter().flat_map(|digest| digest.0).collect();
    let sum = checksum(&[key, &sequence, &digests]);
    [&sequence, &sum, digests.as_slice()].concat()
}

fn decode_row(key: &RowKey, row: &[u8]) -> Option<(u64, Vec<Digest>)> {
    let (sequence, rest) = row.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let (digests, []) = rest.as_chunks() else { return None };
    (*sum == checksum(&[key, sequence, rest]))
        .then(|| (u64::from_be_bytes(*sequence), digests.iter().copied().map(Digest).collect()))
}

fn checksum(parts: &[&[u8]]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = Digest::of(&parts.concat()).0;
    [a, b, c, d, e, f, g, h]
}

/// What an entry costs on disk: its row and its place in the order, in pages that are two
/// thirds full; a row that is too long to share its page costs all of it.
fn stored_bytes(row: &[u8]) -> u64 {
    let entry = size_of::<RowKey>() + row.len();
    let place = size_of::<u64>() + size_of::<RowKey>();
    let entry =
        if entry > PAGE_BYTES / 2 { entry.next_multiple_of(PAGE_BYTES) } else { entry * 3 / 2 };
    (entry + place * 3 / 2) as u64
}

/// Runs calls into redb, which may panic on pages that changed under it.
pub(crate) fn catch_panic<T>(
    work: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(damaged(&format!("redb panicked: {text}")))
    })
}

/// Moves a database that failed out of the way, replacing an older one there, and says whether
/// it did. One that only ran out of room, or into a read-only file system, is left alone.
pub(crate) fn move_aside(path: &Path, cause: &redb::Error) -> bool {
    use ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let is_intact = matches!(cause, redb::Error::Io(error)
        if matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem));
    !is_intact && std::fs::rename(path, path.with_file_name(CORRUPT_NAME)).is_ok()
}

fn damaged(why: &str) -> redb::Error {
    redb::Error::Corrupted(why.into())
}

/// The database, in the state folder.
pub(crate) const FILE_NAME: &str = "digests.redb";

/// Where a corrupt database is kept for whoever wants to know why.
pub(crate) const CORRUPT_NAME: &str = "digests.redb.corrupt";

/// The bound of a cache in memory.
pub(crate) const MEMORY_BYTES_MAX: u64 = 32 << 20;

/// The largest file that is checked as a whole when it is opened. Checking 1 GiB takes 0.7 s.
const CHECKED_BYTES_MAX: u64 = 2 << 30;

/// The pages of redb.
const PAGE_BYTES: usize = 4096;

/// What redb may keep of the file; the kernel's page cache has the rest.
const FILE_CACHE_BYTES: usize = 16 << 20;

/// What redb may keep of what is in memory already.
const MEMORY_CACHE_BYTES: usize = 1 << 20;

const ENTRIES: TableDefinition<'_, &RowKey, &[u8]> = TableDefinition::new("entries");
const ORDER: TableDefinition<'_, u64, &RowKey> = TableDefinition::new("order");
const METADATA: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("books");
const TOTALS: &str = "totals";
