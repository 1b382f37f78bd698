//! Folders and links that are made in a folder: what is in their place is kept where
//! it will do, replaced where that was asked for, and else named in the error. Who
//! bounds what may be made in it is asked first (`charge`). Files are made by `target`.

use crate::charge::Cost;
use crate::folder::{Folder, stat_name};
use crate::meta::{self, Rules};
use crate::naming::{Over, rename, temporary_name};
use rustix::fs::{AtFlags, Mode, mkdirat, symlinkat, unlinkat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Dropped, Fault, Meta, WirePath};

impl Folder {
    /// Makes a folder; an existing one is fine. One that is `unfinished` gets its metadata
    /// later: until then its owner may use it, also if it was there and said otherwise.
    pub fn make_folder(&self, path: &WirePath, mode: u32, unfinished: bool) -> Result<(), Fault> {
        let Some(name) = path.name() else { return Ok(()) };
        let what = format!("cannot make folder {path}");
        let parent = self.open_parent(path)?;
        let charged = match self.charge(Cost::INODE) {
            Ok(charged) => charged,
            // One that is there costs nothing.
            Err(full) => match stat_name(&*parent, OsStr::from_bytes(name)) {
                Ok(_) => return self.use_folder(path, unfinished),
                Err(_) => return Err(full),
            },
        };
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
        match mkdirat(&*parent, OsStr::from_bytes(name), mode) {
            Ok(()) => {
                charged.keep();
                Ok(())
            }
            Err(rustix::io::Errno::EXIST) => self.use_folder(path, unfinished),
            Err(error) => Err(Fault::from_io(&what, &error.into())),
        }
    }

    /// Takes the folder that is at a path for one that was to be made there.
    fn use_folder(&self, path: &WirePath, unfinished: bool) -> Result<(), Fault> {
        let what = || format!("cannot make folder {path}");
        match self.stat(path, self.follows(path)) {
            Ok(Entry { kind: EntryKind::Folder, .. }) => {
                if unfinished {
                    // Where it cannot be opened up, what is made in it says why.
                    let _ = self.open_up(path);
                }
                Ok(())
            }
            // A link may lead to a folder elsewhere: it is not in the way, it is refused.
            Err(fault) if fault.code != Code::NotFound => Err(fault),
            Ok(Entry { kind: EntryKind::Symlink { .. }, .. }) => {
                Err(Fault::new(Code::NotFolder, format!("{}: a link is in its place", what())))
            }
            _ => Err(Fault::new(Code::NotFolder, format!("{}: a file is in its place", what()))),
        }
    }

    /// Makes a folder, in place of a file or a link that is no folder. A folder is never
    /// removed, and nothing is that cannot be replaced.
    pub fn force_folder(&self, path: &WirePath, mode: u32, unfinished: bool) -> Result<(), Fault> {
        match self.make_folder(path, mode, unfinished) {
            Err(fault) if fault.code == Code::NotFolder => {
                let Some(name) = path.name() else { return Err(fault) };
                let parent = self.open_parent(path)?;
                // Nothing is removed for a folder that would be one too many.
                drop(self.charge(Cost::INODE)?);
                unlinkat(&*parent, OsStr::from_bytes(name), AtFlags::empty()).map_err(|e| {
                    Fault::from_io(format!("cannot remove {path} for a folder"), &e.into())
                })?;
                self.make_folder(path, mode, unfinished)
            }
            made => made,
        }
    }

    /// Makes a symbolic link in place of what may be there, but not of a folder. Its owner and
    /// times are set before it takes its name; says what was not kept.
    pub fn make_symlink(
        &self,
        path: &WirePath,
        target: &[u8],
        keep: Option<(&Meta, &Rules)>,
        over: Over,
    ) -> Result<Dropped, Fault> {
        let what = format!("cannot make link {path}");
        let name = path.name();
        let name = name.ok_or_else(|| Fault::new(Code::BadPath, format!("{what}: no name")))?;
        let parent = self.open_parent(path)?;
        let hidden = temporary_name(name);
        let temporary = OsStr::from_bytes(&hidden);
        let charged = self.charge(Cost::INODE.and(Cost::of_bytes(target.len() as u64)))?;
        symlinkat(OsStr::from_bytes(target), &*parent, temporary)
            .map_err(|error| Fault::from_io(&what, &error.into()))?;
        let kept = keep.map_or(Ok(Dropped::default()), |(meta, rules)| {
            meta::apply_to_link(&*parent, temporary, meta, rules)
        });
        let renamed =
            kept.and_then(|dropped| rename(&parent, &hidden, name, over).map(|()| dropped));
        // The first error is what matters; the link may stay if removing it fails too.
        if renamed.is_ok() || unlinkat(&*parent, temporary, AtFlags::empty()).is_err() {
            charged.keep();
        }
        renamed.map_err(|error| over.fault(&what, error))
    }
}
