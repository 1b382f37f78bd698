//! What an inode and a name cost where somebody bounds how many there are: the quota
//! of an export. `Folder` has whoever is asked; what makes a file, a folder or a link
//! in it asks first, just before the system call, and gives back what was not made, or
//! was removed before it got its name. A file that is gone again before its maker returns
//! is not asked for. Never counts content: whoever writes that asks the quota itself.

use std::fmt::Debug;
use std::sync::Arc;
use verbatim_proto::Fault;

/// What something takes of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the file system.
    pub bytes: u64,
    /// Inodes: files, folders and symbolic links.
    pub files: u64,
}

impl Cost {
    /// A file, a folder or a symbolic link, and its name: with a block of its own, as a folder or
    /// a file of one byte has.
    pub const INODE: Self = Self { bytes: 4096, files: 1 };

    /// One more name of a file that is there: twice the longest entry of a folder, because folders
    /// are half full where names come in no order.
    pub const NAME: Self = Self { bytes: 512, files: 0 };

    /// The journal of a partial file, which goes when the file is whole.
    pub const JOURNAL: Self = Self { bytes: 4096, files: 0 };

    /// So many bytes.
    pub fn of_bytes(bytes: u64) -> Self {
        Self { bytes, files: 0 }
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        let add = u64::saturating_add;
        Self { bytes: add(self.bytes, other.bytes), files: add(self.files, other.files) }
    }
}

/// Bounds what is made in a folder.
pub trait Charge: Debug + Send + Sync {
    /// Takes all of this, or none and says why.
    fn take(&self, cost: Cost) -> Result<(), Fault>;

    /// Gives back what was taken for something that was not made.
    fn give_back(&self, cost: Cost);
}

/// What was taken for something that is about to be made; given back unless it is there in the end.
#[derive(Debug)]
pub(crate) struct Charged {
    charge: Option<Arc<dyn Charge>>,
    cost: Cost,
}

impl Charged {
    /// Takes the cost of what is about to be made, where somebody bounds that.
    pub fn take(charge: Option<Arc<dyn Charge>>, cost: Cost) -> Result<Self, Fault> {
        charge.as_ref().map_or(Ok(()), |charge| charge.take(cost))?;
        Ok(Self { charge, cost })
    }

    /// It is there, so this is never given back.
    pub fn keep(mut self) {
        self.charge = None;
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        if let Some(charge) = &self.charge {
            charge.give_back(self.cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use crate::stage::Stage;
    use crate::target::LASTING_BYTES_MIN;
    use crate::{Over, Target};
    use std::fs;
    use std::sync::Mutex;
    use verbatim_proto::message::FileInfo;
    use verbatim_proto::{Code, Digest, WirePath};

    /// What may still be made.
    #[derive(Debug)]
    struct Left(Mutex<Cost>);

    impl Charge for Left {
        fn take(&self, cost: Cost) -> Result<(), Fault> {
            let mut left = self.0.lock().expect("unpoisoned");
            let bytes = left.bytes.checked_sub(cost.bytes);
            let both = bytes.zip(left.files.checked_sub(cost.files));
            let (bytes, files) = both.ok_or_else(|| Fault::new(Code::NoSpace, "used up"))?;
            *left = Cost { bytes, files };
            Ok(())
        }

        fn give_back(&self, cost: Cost) {
            let mut left = self.0.lock().expect("unpoisoned");
            *left = left.and(cost);
        }
    }

    const ALL: Cost = Cost { bytes: 1 << 20, files: 100 };

    struct Place {
        dir: tempfile::TempDir,
        folder: Folder,
        left: Arc<Left>,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            let left = Arc::new(Left(Mutex::new(ALL)));
            let folder = Folder::open(dir.path()).expect("opens").charging(Some(left.clone()));
            Self { dir, folder, left }
        }

        /// What was taken since this was asked last.
        fn taken(&self) -> Cost {
            let left = std::mem::replace(&mut *self.left.0.lock().expect("unpoisoned"), ALL);
            Cost { bytes: ALL.bytes - left.bytes, files: ALL.files - left.files }
        }

        fn has_only(&self, bytes: u64, files: u64) {
            *self.left.0.lock().expect("unpoisoned") = Cost { bytes, files };
        }
    }

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    fn inodes(files: u64) -> Cost {
        Cost { bytes: files * Cost::INODE.bytes, files }
    }

    #[test]
    fn a_folder_that_is_there_costs_nothing_also_where_nothing_is_left() {
        let place = Place::new();
        let make = |name: &str| place.folder.make_folder(&path(name), 0o755, true);
        make("a").expect("makes");
        assert_eq!(place.taken(), inodes(1));
        make("a").expect("is there");
        assert_eq!(place.taken(), Cost::default());
        place.has_only(1 << 20, 0);
        make("a").expect("is there");
        assert_eq!(make("b").expect_err("nothing is left").code, Code::NoSpace);
        assert!(make("missing/b").is_err_and(|fault| fault.code != Code::NoSpace));
        fs::write(place.dir.path().join("file"), b"kept").expect("writes");
        let forced = place.folder.force_folder(&path("file"), 0o755, false);
        assert_eq!(forced.expect_err("nothing is left").code, Code::NoSpace);
        assert_eq!(fs::read(place.dir.path().join("file")).expect("it stays"), b"kept");
        place.taken();
        place.folder.force_folder(&path("file"), 0o755, false).expect("replaces it");
        assert_eq!(place.taken(), inodes(1));
        make("missing/b").expect_err("nothing to make it in");
        assert_eq!(place.taken(), Cost::default(), "what was not made is given back");
    }

    #[test]
    fn links_cost_an_inode_and_their_target_or_a_name() {
        let place = Place::new();
        let link =
            |name: &str, over| place.folder.make_symlink(&path(name), &[b'x'; 100], None, over);
        link("a", Over::Nothing).expect("links");
        assert_eq!(place.taken(), inodes(1).and(Cost::of_bytes(100)));
        assert_eq!(link("a", Over::Nothing).expect_err("is there").code, Code::Exists);
        assert_eq!(place.taken(), Cost::default());
        place.folder.link(&path("b"), &path("a")).expect("links");
        assert_eq!(place.taken(), Cost::NAME);
        place.folder.link(&path("c"), &path("nothing")).expect_err("there is nothing");
        assert_eq!(place.taken(), Cost::default());
        place.has_only(4096, 1);
        assert_eq!(
            link("d", Over::Anything).expect_err("its target has no room").code,
            Code::NoSpace
        );
        place.has_only(0, 1);
        assert!(place.folder.link(&path("d"), &path("a")).is_err());
    }

    #[test]
    fn files_cost_an_inode_when_they_are_begun_and_no_other_when_they_are_gone_on_with() {
        let place = Place::new();
        let key = Digest::of(b"this copy");
        let info = FileInfo {
            size: LASTING_BYTES_MIN,
            mode: 0o600,
            mtime_ns: 5,
            allocated: 0,
            version: None,
        };
        Target::create(&place.folder, &path("a"), 0, 0o644).expect("creates").discard();
        assert_eq!(place.taken(), Cost::default(), "it never got its name");
        let target = Target::create(&place.folder, &path("a"), 0, 0o644).expect("creates");
        assert_eq!(place.taken(), inodes(1));
        assert_eq!(Target::commit(&[Arc::new(target)]), [Ok(())]);
        assert_eq!(place.taken(), Cost::default(), "nothing is given back");
        drop(Target::create_lasting(&place.folder, &path("b"), &info, &key).expect("begins"));
        assert_eq!(place.taken(), Cost::INODE.and(Cost::JOURNAL));
        Target::find_lasting(&place.folder, &path("b"), &key).expect("it is there");
        assert_eq!(place.taken(), Cost::default());
        place.has_only(1 << 20, 0);
        let full = Target::create(&place.folder, &path("c"), 0, 0o644).map(drop);
        assert_eq!(full.expect_err("nothing is left").code, Code::NoSpace);
        let full = Target::create_lasting(&place.folder, &path("d"), &info, &key).map(drop);
        assert_eq!(full.expect_err("nothing is left").code, Code::NoSpace);
        let left = fs::read_dir(place.dir.path()).expect("lists").count();
        assert_eq!(left, 3, "a file, and the partial one with its journal");
    }

    #[test]
    fn a_tree_beside_a_target_costs_its_folders_and_its_names() {
        let place = Place::new();
        fs::create_dir_all(place.dir.path().join("t/sub")).expect("folders");
        fs::write(place.dir.path().join("t/sub/f"), b"x").expect("writes");
        std::os::unix::fs::symlink("x", place.dir.path().join("t/l")).expect("links");
        let prepare = |key: &[u8]| {
            Stage::prepare(
                &place.folder,
                &path("t"),
                &Digest::of(key),
                None,
                &|_| Ok(()),
                &mut |_| true,
            )
        };
        let stage = prepare(b"a").expect("it is ours");
        let taken = place.taken();
        // The file is a reflink, which has an inode, or another name.
        let with = |file: Cost| inodes(2).and(file).and(Cost::NAME);
        assert!([with(Cost::NAME), with(Cost::INODE)].contains(&taken), "{taken:?}");
        stage.discard().expect("removes");
        drop(stage);
        place.has_only(1 << 20, 1);
        assert!(prepare(b"b").is_err(), "its folder has no room");
        place.taken();
        fs::hard_link(place.dir.path().join("t/sub/f"), place.dir.path().join("other"))
            .expect("links");
        place.folder.own(&path("other"), &|_| Ok(())).expect("owns");
        assert_eq!(place.taken(), inodes(1), "a copy is a file of its own");
    }
}
