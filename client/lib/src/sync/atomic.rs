//! `--atomic` with a local target: prepares the staging tree beside the target, and the key by
//! which a later run resumes it. `files::stage` builds the tree itself. Called by `sync`.

use crate::session::Session;
use crate::session::command_error::CopyError;
use crate::sync::{SyncOptions, not_held};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use verbatim_engine::connection::error::ClientError;
use verbatim_files::Folder;
use verbatim_files::hold::Hold;
use verbatim_files::stage::Stage;
use verbatim_proto::plan::Options;
use verbatim_proto::{Code, Digest, Fault, Habits, Resolution, WirePath};

impl SyncOptions {
    /// Whether the sync builds a staging tree (`--atomic`).
    pub(crate) fn is_atomic(&self) -> bool {
        self.atomic && !self.dry_run
    }

    /// The options of the comparison, for the capabilities of the target's file system.
    pub(crate) fn plan_with(&self, fold_case: bool, habits: Habits, apart: bool) -> Options {
        let resolution = if self.exact { Resolution::default() } else { habits.resolution };
        let habits = Habits { resolution, ..habits };
        Options { fold_case, habits, apart, part: self.chosen.is_some(), ..self.plan }
    }

    /// Whether the sync may test the timestamps of the target's file system.
    pub(crate) fn tries(&self) -> bool {
        !self.dry_run && !self.exact
    }

    /// The key of this sync: a later run resumes the staging tree only if it copies the same source
    /// with the same options.
    pub(crate) fn key(&self, source: &str) -> Digest {
        let mut text = vec![source.as_bytes().to_vec(), vec![u8::from(self.plan.delete)]];
        text.extend(self.filter.texts().iter().cloned());
        if let Some(chosen) = self.chosen.as_ref().filter(|chosen| chosen.must_be_there()) {
            text.extend(chosen.paths().map(|path| path.as_bytes().to_vec()));
        }
        Digest::of(&text.join(&0))
    }
}

/// Creates or resumes the staging tree of a local target, and locks both.
pub(crate) async fn prepare(
    session: &mut Session,
    target: &Path,
    key: Digest,
    held: Option<Hold>,
) -> Result<(Folder, Stage), CopyError> {
    let fault = |fault: Fault| CopyError::from(ClientError::Fault(fault));
    let target = target.to_owned();
    let work = tokio::task::spawn_blocking(move || build(&target, &key, held));
    let built = session.keep_alive_while(work).await?;
    let lost = |_| Fault::new(Code::Bug, "building a tree beside the target failed");
    built.map_err(lost).and_then(|built| built).map_err(fault)
}

fn build(target: &Path, key: &Digest, held: Option<Hold>) -> Result<(Folder, Stage), Fault> {
    let (parent, name) = split(target)?;
    let folder = Folder::open(&parent)?;
    let stage = Stage::prepare(&folder, &name, key, held, &|_| Ok(()), &mut |_| true);
    let stage = stage.map_err(|error| not_held(error, target))?;
    Ok((folder.below(stage.path())?, stage))
}

/// The parent folder of a target, and its name there. A link is resolved: its destination is the
/// target.
fn split(target: &Path) -> Result<(PathBuf, WirePath), Fault> {
    let what = || format!("cannot build a tree beside {}", target.display());
    let no_name = || {
        let text = format!("{}: it has no name to exchange; name a folder in it", what());
        Fault::new(Code::BadPath, text)
    };
    let is_there = target.symlink_metadata().is_ok();
    let whole = if is_there { target } else { target.parent().unwrap_or(target) };
    let whole = if whole.as_os_str().is_empty() { Path::new(".") } else { whole };
    let whole = whole.canonicalize().map_err(|e| Fault::from_io(what(), &e))?;
    let (parent, name) = match is_there {
        true => (whole.parent().map(Path::to_owned), whole.file_name()),
        false => (Some(whole.clone()), target.file_name()),
    };
    let (parent, name) = parent.zip(name).ok_or_else(no_name)?;
    Ok((parent, WirePath::parse(name.as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_target_is_split_after_its_links_are_resolved() {
        let dir = tempfile::tempdir().expect("folder");
        let dir = dir.path().canonicalize().expect("there");
        fs::create_dir_all(dir.join("a/b")).expect("makes");
        std::os::unix::fs::symlink("a/b", dir.join("link")).expect("links");
        std::os::unix::fs::symlink("nowhere", dir.join("dangling")).expect("links");
        let is = |path: &str| {
            let (parent, name) = split(&dir.join(path))?;
            Ok::<_, Fault>((parent, name.to_string()))
        };
        assert_eq!(is("a/b/"), Ok((dir.join("a"), "b".into())));
        assert_eq!(is("a/new"), Ok((dir.join("a"), "new".into())));
        assert_eq!(is("link"), Ok((dir.join("a"), "b".into())), "it is what it leads to");
        assert_eq!(is("dangling").map_err(|f| f.code), Err(Code::NotFound));
        assert_eq!(is("none/new").map_err(|f| f.code), Err(Code::NotFound));
        assert_eq!(split(Path::new("/")).map_err(|f| f.code), Err(Code::BadPath));
    }
}
