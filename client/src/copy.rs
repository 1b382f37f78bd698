//! A copy as the user asked for it: sources and a target become work for a
//! session, by the rules of cp. Also lists. Called by the binary, by tests and
//! by the quickstart; tells everything to an observer.

mod pipes;

use crate::location::{Location, Remote};
use crate::report::{Failure, Observer, Summary};
use crate::session::{
    ClientError, Download, LocalTree, RemoteTree, Session, SessionOptions, Upload, UploadSource,
    Work,
};
use crate::targets::{Place, Refusal, Request, TargetState, check_target, place};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use verbatim_files::Folder;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, WirePath};

/// What to copy, and how.
pub struct CopyOptions {
    /// Where from.
    pub sources: Vec<Location>,
    /// Where to.
    pub target: Location,
    /// Whether folders are copied.
    pub recursive: bool,
}

/// Why a copy was not even begun.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The command makes no sense.
    #[error("{cause}")]
    Usage {
        /// What is wrong.
        cause: String,
        /// What to do.
        hint: Option<String>,
    },
    /// There is no session.
    #[error("{0}")]
    Client(#[from] ClientError),
}

impl CopyError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Client(error) => error.hint(),
        }
    }
}

/// Finds the server of a copy: one side, and only one, must be remote.
pub fn server_of(options: &CopyOptions) -> Result<&Remote, CopyError> {
    pipes::check(options)?;
    let usage = |cause: &str, hint: &str| {
        Err(CopyError::Usage { cause: cause.into(), hint: Some(hint.into()) })
    };
    let remotes: Vec<&Remote> = options.sources.iter().filter_map(remote).collect();
    match (remotes.first(), remote(&options.target)) {
        (Some(_), Some(_)) => usage(
            "source and target are both remote",
            "run rdma-cp on one of the two, so that data crosses the network once",
        ),
        (None, None) => usage(
            "neither source nor target is remote",
            "write the remote side as HOST:/EXPORT/PATH; cp copies on one machine",
        ),
        (None, Some(target)) => Ok(target),
        (Some(first), None) => {
            let same = |other: &&Remote| (&other.host, other.port) == (&first.host, first.port);
            if remotes.len() < options.sources.len() || !remotes.iter().all(same) {
                return usage(
                    "sources are on different machines",
                    "copy from one machine at a time",
                );
            }
            Ok(first)
        }
    }
}

fn remote(location: &Location) -> Option<&Remote> {
    match location {
        Location::Remote(remote) => Some(remote),
        Location::Local(_) | Location::Pipe => None,
    }
}

/// Copies. Returns a summary once a session stood, whatever became of the files.
pub async fn copy(
    options: &CopyOptions,
    session: SessionOptions,
    observer: &mut dyn Observer,
    stop: impl Future<Output = ()>,
) -> Result<Summary, CopyError> {
    let peer = server_of(options)?.peer();
    let mut session = Session::connect(session).await?;
    let mut plan = Plan { peer, work: Vec::new(), failures: Vec::new() };
    match &options.target {
        Location::Local(target) => plan.downloads(options, target, &mut session).await?,
        Location::Pipe => plan.download_to_pipe(options, &mut session).await?,
        Location::Remote(target) if options.sources == [Location::Pipe] => {
            plan.upload_from_pipe(target, &mut session).await?;
        }
        Location::Remote(target) => plan.uploads(options, target, &mut session).await?,
    }
    for failure in &plan.failures {
        observer.failed(failure);
    }
    let mut summary = session.copy(plan.work, observer, stop).await;
    summary.failed += plan.failures.len() as u64;
    session.close().await;
    Ok(summary)
}

/// Lists a remote folder, or the exports of a server.
pub async fn list(
    remote: &Remote,
    session: SessionOptions,
    recursive: bool,
    mut each: impl FnMut(Entry),
) -> Result<Vec<Failure>, CopyError> {
    let mut session = Session::connect(session).await?;
    let entry = match session.stat(&remote.path).await? {
        Ok(entry) => entry,
        Err(fault) => {
            let (path, peer) = (remote.to_string(), remote.peer());
            return Ok(vec![Failure { path, peer, fault }]);
        }
    };
    let mut failures = Vec::new();
    if entry.kind == EntryKind::Folder {
        let page = |entries: Vec<Entry>, faults: Vec<(WirePath, Fault)>| {
            entries.into_iter().for_each(&mut each);
            failures.extend(faults.into_iter().map(|(path, fault)| Failure {
                path: path.to_string(),
                peer: remote.peer(),
                fault,
            }));
        };
        session.list(&remote.path, recursive, page).await?;
    } else {
        each(entry);
    }
    session.close().await;
    Ok(failures)
}

struct Plan {
    peer: String,
    work: Vec<Work>,
    failures: Vec<Failure>,
}

impl Plan {
    async fn downloads(
        &mut self,
        options: &CopyOptions,
        target: &Path,
        session: &mut Session,
    ) -> Result<(), CopyError> {
        let state = local_state(target);
        let request = Request {
            sources: options.sources.len(),
            recursive: options.recursive,
            target_is_folder: target.as_os_str().as_bytes().ends_with(b"/"),
        };
        check_target(request, state).map_err(|refusal| self.refuse(target.display(), &refusal))?;
        for source in options.sources.iter().filter_map(remote) {
            let label = source.to_string();
            let entry = match session.stat(&source.path).await? {
                Ok(entry) => entry,
                Err(fault) => {
                    self.fail(label, fault);
                    continue;
                }
            };
            let made = place(request, state, &entry.kind, source.contents)
                .map_err(|refusal| fault_of(&refusal))
                .and_then(|place| self.download(source, &entry, target, place, label.clone()));
            if let Err(fault) = made {
                self.fail(label, fault);
            }
        }
        Ok(())
    }

    fn download(
        &mut self,
        source: &Remote,
        entry: &Entry,
        target: &Path,
        place: Place,
        label: String,
    ) -> Result<(), Fault> {
        let no_export = || Fault::new(Code::BadPath, "name an export: HOST:/EXPORT/PATH");
        let name = source.path.name().ok_or_else(no_export)?;
        let (folder, local) = match place {
            Place::Inside => (Folder::open(target)?, WirePath::parse(name)?),
            Place::Itself if target.is_dir() => (Folder::open(target)?, WirePath::root()),
            Place::Itself => split_local(target)?,
        };
        let (folder, remote) = (Arc::new(folder), source.path.clone());
        self.work.push(match entry.kind {
            EntryKind::Folder => Work::DownloadTree(RemoteTree { remote, folder, local, label }),
            _ => Work::Download(Download { remote, folder, local, size: entry.size, label }),
        });
        Ok(())
    }

    async fn uploads(
        &mut self,
        options: &CopyOptions,
        target: &Remote,
        session: &mut Session,
    ) -> Result<(), CopyError> {
        let state = match session.stat(&target.path).await? {
            Ok(entry) if entry.kind == EntryKind::Folder => TargetState::Folder,
            Ok(_) => TargetState::File,
            // No such file may be what is asked for; no such export never is.
            Err(fault) if fault.code == Code::NotFound && !target.path.parent().is_root() => {
                TargetState::Missing
            }
            Err(fault) => return Err(ClientError::Fault(fault).into()),
        };
        let request = Request {
            sources: options.sources.len(),
            recursive: options.recursive,
            target_is_folder: target.is_folder && !target.path.is_root(),
        };
        check_target(request, state).map_err(|refusal| self.refuse(target, &refusal))?;
        for source in &options.sources {
            let Location::Local(path) = source else { continue };
            let label = path.display().to_string();
            let made = kind_of(path).and_then(|(kind, size)| {
                let contents = path.as_os_str().as_bytes().ends_with(b"/.");
                let place = place(request, state, &kind, contents).map_err(|r| fault_of(&r))?;
                self.upload(path, &kind, size, target, place)
            });
            if let Err(fault) = made {
                self.fail(label, fault);
            }
        }
        Ok(())
    }

    fn upload(
        &mut self,
        path: &Path,
        kind: &EntryKind,
        size: u64,
        target: &Remote,
        place: Place,
    ) -> Result<(), Fault> {
        let label = path.display().to_string();
        let remote = match place {
            Place::Itself => target.path.clone(),
            Place::Inside => target.path.join(&WirePath::parse(&name_of(path)?)?),
        };
        if target.path.is_root() {
            let text = "the target names no export; use HOST:/EXPORT/PATH";
            return Err(Fault::new(Code::BadPath, text));
        }
        self.work.push(match kind {
            EntryKind::Folder => {
                let folder = Arc::new(Folder::open(path)?);
                Work::UploadTree(LocalTree { folder, remote, label })
            }
            _ => {
                let source = UploadSource::Path(path.to_owned());
                Work::Upload(Upload { source, remote, size, label })
            }
        });
        Ok(())
    }

    fn fail(&mut self, path: String, fault: Fault) {
        self.failures.push(Failure { path, peer: self.peer.clone(), fault });
    }

    fn refuse(&self, what: impl std::fmt::Display, refusal: &Refusal) -> CopyError {
        CopyError::Usage {
            cause: format!("cannot copy to {what}: {}", refusal.cause),
            hint: refusal.hint.map(str::to_owned),
        }
    }
}

fn fault_of(refusal: &Refusal) -> Fault {
    let code = if refusal.hint.is_some() { Code::IsFolder } else { Code::Special };
    Fault::new(code, refusal.cause)
}

fn local_state(target: &Path) -> TargetState {
    match std::fs::metadata(target) {
        Ok(metadata) if metadata.is_dir() => TargetState::Folder,
        Ok(_) => TargetState::File,
        Err(_) => TargetState::Missing,
    }
}

fn kind_of(path: &Path) -> Result<(EntryKind, u64), Fault> {
    let metadata = std::fs::metadata(path)
        .map_err(|e| Fault::from_io(format!("cannot look at {}", path.display()), &e))?;
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => EntryKind::Folder,
        kind if kind.is_file() => EntryKind::File,
        _ => EntryKind::Special,
    };
    Ok((kind, metadata.len()))
}

/// The folder a new local name goes into, and the name.
fn split_local(target: &Path) -> Result<(Folder, WirePath), Fault> {
    let name = target.file_name().ok_or_else(|| {
        Fault::new(Code::BadPath, format!("{} has no name to write to", target.display()))
    })?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((Folder::open(&parent)?, WirePath::parse(name.as_bytes())?))
}

/// The last name of a local path, also where it is written as `.` or `dir/..`.
fn name_of(path: &Path) -> Result<Vec<u8>, Fault> {
    if let Some(Component::Normal(name)) = path.components().next_back() {
        return Ok(name.as_bytes().to_vec());
    }
    let what = format!("cannot look at {}", path.display());
    let whole = path.canonicalize().map_err(|e| Fault::from_io(&what, &e))?;
    let name = whole
        .file_name()
        .ok_or_else(|| Fault::new(Code::BadPath, format!("{} has no name", path.display())))?;
    Ok(name.as_bytes().to_vec())
}
