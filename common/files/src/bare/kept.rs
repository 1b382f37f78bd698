//! Which files of a tree have no extended attributes, kept in a file between the
//! runs of a client: one that mirrors a tree every minute would ask all of it each
//! time. Believed within one boot and one mount of the tree (before Linux 6.8 one
//! that another of the same options takes the place of cannot be told from it), and
//! of files on its own file system alone: those below it come and go under the same
//! numbers. By the rules of `bare` otherwise. What cannot be read or written is asked
//! again, as if it had never been kept. Used by `tree`, for a walk of all that is
//! not left out.
//!
//! One file for a tree and what is left out of it: a head, then parts of `Bare` with
//! their numbers, each with a checksum. It is replaced as a whole.

use super::{Bare, Mark, PART_FILES, PARTS, is_stamped};
use crate::identity::{stat_open, twin_of};
use crate::journal::{BOOT_BYTES, seal, stay_of, unseal};
use crate::replace::replace_large;
use crate::{meta::sees_all, mounts, stale};
use std::fs::{DirBuilder, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;
use verbatim_proto::{Digest, Filter, Twin};

const MAGIC: [u8; 8] = *b"VBTBARE1";

/// What the name of every such file ends with.
const SUFFIX: &str = ".bare";

/// How many bytes a part takes, without its checksum.
const PART_BYTES: usize = 4 + PART_FILES * MARK_BYTES;

/// A device, an inode and a time.
const MARK_BYTES: usize = 24;

/// Files that were known for each that had to be asked from which on it is not worth writing all
/// of them again.
const KNOWN_PER_ASKED_MAX: usize = 64;

/// What an earlier run knew of a tree, and what this one finds.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    head: Vec<u8>,
    pub bare: Arc<Bare>,
    /// The file system of the tree.
    pub device: u64,
}

impl Kept {
    /// Reads what is kept in `folder` of the tree at `root`. None where nothing can be: on a file
    /// system that is not trusted, or where the system does not name its boots.
    pub fn open(folder: &Path, root: &OwnedFd, filter: &Filter) -> Option<Self> {
        let stay = Some(stay_of(root)).filter(|stay| *stay != [0; BOOT_BYTES])?;
        let Twin { device, inode } = twin_of(&stat_open(root).ok().filter(|_| is_stamped(root))?);
        let mut which = Vec::new();
        // Who is told more of its attributes keeps another file.
        for number in [device, inode, u64::from(sees_all())] {
            which.extend_from_slice(&number.to_le_bytes());
        }
        for text in filter.texts() {
            which.extend_from_slice(&Digest::of(text).0);
        }
        let name = Digest::of(&which).to_string();
        let path = folder.join(format!("{}{SUFFIX}", &name[..32]));
        let Digest(options) = Digest::of(&mounts::options(device));
        let head = [&MAGIC[..], &stay, &options].concat();
        let bare = Arc::new(read(&path, &head).unwrap_or_default());
        Some(Self { path, head, bare, device })
    }

    /// Keeps for the next run what was found, where that is worth it. The walk is at its end.
    pub fn keep(&self, now: SystemTime) {
        let (known, noted) = (self.bare.known.load(Relaxed), self.bare.noted.load(Relaxed));
        if noted * KNOWN_PER_ASKED_MAX <= known {
            return;
        }
        // Without it every file is asked again, so each error is one of no consequence.
        let folder = self.path.parent().expect("the path ends in a file name");
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        stale::remove(folder, SUFFIX, now);
        // What is mostly of files that are gone is begun anew.
        let _ = match self.bare.count() > 2 * (known + noted) {
            true => std::fs::remove_file(&self.path),
            false => replace_large(&self.path, |file| self.write(file)),
        };
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        file.write_all(&self.head)?;
        for (number, part) in self.bare.parts.iter().enumerate() {
            let mut bytes = (number as u32).to_le_bytes().to_vec();
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            if part.is_empty() {
                continue;
            }
            for Mark { device, inode, ctime_ns } in part.iter() {
                for number in [*device, *inode, *ctime_ns as u64] {
                    bytes.extend_from_slice(&number.to_le_bytes());
                }
            }
            drop(part);
            file.write_all(&seal(bytes))?;
        }
        file.flush()
    }
}

/// What is at this path, if this user wrote it and it begins with this head.
fn read(path: &Path, head: &[u8]) -> Option<Bare> {
    let file = File::open(path).ok()?;
    let owner = file.metadata().ok()?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    // It is of use to somebody.
    let _ = file.set_modified(SystemTime::now());
    let mut file = BufReader::new(file);
    let mut found = vec![0; head.len()];
    file.read_exact(&mut found).ok().filter(|()| found == head)?;
    let mut bare = Bare::default();
    let mut bytes = vec![0; seal(vec![0; PART_BYTES]).len()];
    for _ in 0..PARTS {
        // One that ends early, or was altered, is good for what is before that.
        let Some((number, part)) = file.read_exact(&mut bytes).ok().and_then(|()| part(&bytes))
        else {
            break;
        };
        let Some(place) = bare.parts.get_mut(number) else { break };
        *place = part.into();
    }
    Some(bare)
}

/// A part and its number.
fn part(bytes: &[u8]) -> Option<(usize, Vec<Mark>)> {
    let (number, marks) = unseal(bytes)?.split_first_chunk::<4>()?;
    let number_at = |at: &[u8]| u64::from_le_bytes(at.try_into().expect("eight bytes"));
    let mark = |bytes: &[u8]| Mark {
        device: number_at(&bytes[..8]),
        inode: number_at(&bytes[8..16]),
        ctime_ns: number_at(&bytes[16..]) as i64,
    };
    Some((u32::from_le_bytes(*number) as usize, marks.chunks_exact(MARK_BYTES).map(mark).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Statx;
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    /// A tree, and a folder that what is known of it is kept in. None where it cannot be.
    struct World {
        tree: tempfile::TempDir,
        state: tempfile::TempDir,
        kept: Kept,
    }

    fn world() -> Option<World> {
        let folder = || tempfile::tempdir().expect("folder");
        let (tree, state) = (folder(), folder());
        let Some(kept) = open(&tree, &state) else {
            assert!(!is_stamped(&root(&tree)));
            return None;
        };
        Some(World { tree, state, kept })
    }

    fn root(tree: &tempfile::TempDir) -> OwnedFd {
        File::open(tree.path()).expect("opens").into()
    }

    fn open(tree: &tempfile::TempDir, state: &tempfile::TempDir) -> Option<Kept> {
        Kept::open(&state.path().join("not/there"), &root(tree), &Filter::default())
    }

    impl World {
        fn again(&self) -> Kept {
            open(&self.tree, &self.state).expect("as before")
        }
    }

    /// The status of a file that is old enough, of this number.
    fn status(inode: u64) -> Statx {
        let file = tempfile::tempfile().expect("a file");
        let mut stat = stat_open(file).expect("its status");
        stat.stx_ino = inode;
        stat.stx_ctime.tv_sec -= 10;
        stat
    }

    fn note(kept: &Kept, stats: &[Statx]) {
        stats.iter().for_each(|stat| kept.bare.note(stat, SystemTime::now()));
        kept.keep(SystemTime::now());
    }

    #[test]
    fn what_one_run_finds_the_next_one_knows_of_this_tree_alone() {
        let Some(world) = world() else { return };
        // Of several parts.
        let stats: Vec<Statx> = (0..5).map(|number| status(1 + number * 70_000)).collect();
        note(&world.kept, &stats);
        let again = world.again();
        assert!(stats.iter().all(|stat| again.bare.knows(stat)));
        let mut changed = stats[0];
        changed.stx_ctime.tv_nsec ^= 1;
        assert!(!again.bare.knows(&changed));
        let other = tempfile::tempdir().expect("folder");
        let other = open(&other, &world.state).expect("on the same file system");
        assert!(!other.bare.knows(&stats[0]));
        let filter = Filter::parse(vec![b"*.tmp".to_vec()]).expect("plain");
        let part =
            Kept::open(world.kept.path.parent().expect("a folder"), &root(&world.tree), &filter);
        assert!(!part.expect("of the same tree").bare.knows(&stats[0]), "what is left out counts");
    }

    #[test]
    fn what_another_user_wrote_is_not_believed() {
        let Some(world) = world() else { return };
        let stat = status(1);
        note(&world.kept, &[stat]);
        if std::os::unix::fs::chown(&world.kept.path, Some(12_345), None).is_ok() {
            assert!(!world.again().bare.knows(&stat));
        }
    }

    #[test]
    fn what_was_altered_or_is_of_another_stay_is_not_believed() {
        let Some(world) = world() else { return };
        let stat = status(7);
        note(&world.kept, &[stat]);
        let whole = fs::read(&world.kept.path).expect("reads");
        let end = whole.len() as u64 - 1;
        let (stay, part) = (MAGIC.len() as u64, world.kept.head.len() as u64);
        for at in [0, stay, part - 1, part + 4 + 7 * MARK_BYTES as u64, end] {
            let file = File::options().write(true).open(&world.kept.path).expect("opens");
            file.write_all_at(&[whole[at as usize] ^ 1], at).expect("writes");
            assert!(!world.again().bare.knows(&stat), "byte {at}");
            file.write_all_at(&whole, 0).expect("writes");
            assert!(world.again().bare.knows(&stat));
            file.set_len(end).expect("cuts");
            assert!(!world.again().bare.knows(&stat), "cut short");
            file.write_all_at(&whole, 0).expect("writes");
        }
    }

    #[test]
    fn all_is_written_again_only_for_files_enough() {
        let Some(world) = world() else { return };
        let (old, new) = (status(1), status(2));
        note(&world.kept, &[old]);
        let again = world.again();
        (0..KNOWN_PER_ASKED_MAX).for_each(|_| assert!(again.bare.knows(&old)));
        note(&again, &[new]);
        assert!(!world.again().bare.knows(&new), "one of many is asked again");
        let again = world.again();
        (1..KNOWN_PER_ASKED_MAX).for_each(|_| assert!(again.bare.knows(&old)));
        note(&again, &[new]);
        let again = world.again();
        assert!(again.bare.knows(&old) && again.bare.knows(&new));
    }

    #[test]
    fn what_is_mostly_of_files_that_are_gone_is_begun_anew() {
        let Some(world) = world() else { return };
        let stats: Vec<Statx> = (1..8).map(status).collect();
        note(&world.kept, &stats[..6]);
        let again = world.again();
        assert!(again.bare.knows(&stats[0]));
        note(&again, &stats[6..]);
        assert!(!world.kept.path.exists());
        note(&world.again(), &stats[..1]);
        assert!(world.again().bare.knows(&stats[0]) && !world.again().bare.knows(&stats[1]));
    }

    #[test]
    fn trees_that_nobody_mirrors_any_more_are_forgotten() {
        let Some(world) = world() else { return };
        note(&world.kept, &[status(1)]);
        let other = tempfile::tempdir().expect("folder");
        let other = open(&other, &world.state).expect("on the same file system");
        other.bare.note(&status(1), SystemTime::now());
        other.keep(SystemTime::now() + stale::KEEP / 2);
        assert!(world.kept.path.exists());
        // What is only read is of use as well.
        let old = SystemTime::now() - stale::KEEP;
        let file = File::options().write(true).open(&world.kept.path).expect("opens");
        file.set_modified(old).expect("sets");
        world.again();
        other.bare.note(&status(3), SystemTime::now());
        other.keep(SystemTime::now() + Duration::from_secs(60));
        assert!(world.kept.path.exists());
        other.bare.note(&status(2), SystemTime::now());
        other.keep(SystemTime::now() + stale::KEEP + Duration::from_secs(60));
        assert!(!world.kept.path.exists() && other.path.exists());
    }
}
