//! A copy as the user asked for it: sources and a target become work for a
//! session, by the rules of cp. Called by the binary, by tests and
//! by the quickstart; tells everything to an observer.

mod listing;
mod pipes;

pub use listing::list;

use crate::glob;
use crate::inside::Inside;
use crate::local::{local_resolution, local_state, look_at, name_of, split_local};
use crate::location::{Location, Remote};
use crate::reconnect;
use crate::report::{Failure, Observer, Summary, hint_of};
use crate::rules::{Replace, Rules, Task};
use crate::session::{
    ClientError, Download, LocalTree, RemoteTree, Session, SessionOptions, Upload, UploadSource,
    Work,
};
use crate::targets::{
    Place, Places, Refusal, Request, TargetState, check_target, is_contents, place,
};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use verbatim_files::Folder;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Resolution, WirePath};

/// What to copy, and how.
pub struct CopyOptions {
    /// Where from.
    pub sources: Vec<Location>,
    /// Where to.
    pub target: Location,
    /// Whether folders are copied.
    pub recursive: bool,
    /// What of it is copied, and what is done with it.
    pub rules: Rules,
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
    /// How it goes cannot be told where it is to be.
    #[error("{0}")]
    Status(Fault),
    /// There is no session.
    #[error("{0}")]
    Client(#[from] ClientError),
}

impl CopyError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Status(fault) if fault.code == Code::NoSpace => {
                hint_of(fault.code).map(str::to_owned)
            }
            Self::Status(_) => {
                Some("give a --status-file in a folder that you may write to".into())
            }
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
pub fn copy<'a>(
    options: &'a CopyOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: impl Future<Output = ()> + 'a,
) -> Running<'a, Summary> {
    copy_until(options, session, observer, Box::pin(stop))
}

/// The same, boxed: so this crate compiles the session, and not each program that copies.
fn copy_until<'a>(
    options: &'a CopyOptions,
    session: SessionOptions,
    observer: &'a mut dyn Observer,
    stop: Stop<'a>,
) -> Running<'a, Summary> {
    Box::pin(copy_whole(options, session, observer, stop))
}

async fn copy_whole(
    options: &CopyOptions,
    session: SessionOptions,
    observer: &mut dyn Observer,
    mut stop: Stop<'_>,
) -> Result<Summary, CopyError> {
    let peer = server_of(options)?.peer();
    // Where nothing is written, nothing is kept.
    let preserve = session.preserve && options.rules.task == Task::Copy;
    let session = SessionOptions { preserve, ..session };
    let make = async |first: &mut Session| Plan::make(options, &peer, first).await;
    let begun = match reconnect::begin(&session, observer, &mut stop, make).await? {
        Ok(begun) => begun,
        Err(fault) => {
            let sources = options.sources.iter().map(Location::to_string);
            return Ok(reconnect::not_begun(sources, &peer, fault, observer));
        }
    };
    let (plan, first) = (begun.found, begun.session);
    for failure in &plan.failures {
        observer.failed(failure);
    }
    let rules = Rules { resolution: plan.resolution, ..options.rules.clone() };
    let mut summary = reconnect::copy(&plan.work, &rules, first, session, observer, stop).await;
    summary.failed += plan.failures.len() as u64;
    summary.reconnects += begun.reconnects;
    Ok(summary)
}

/// What ends a copy before its time, when it completes.
pub(crate) type Stop<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A copy, or a mirror, under way.
pub type Running<'a, T> = Pin<Box<dyn Future<Output = Result<T, CopyError>> + 'a>>;

struct Plan {
    peer: String,
    work: Vec<Work>,
    failures: Vec<Failure>,
    /// Which source goes where.
    places: Places,
    /// How finely the target keeps times, where that matters.
    resolution: Resolution,
}

impl Plan {
    /// Finds out what there is to copy.
    async fn make(
        options: &CopyOptions,
        peer: &str,
        session: &mut Session,
    ) -> Result<Self, CopyError> {
        let mut plan = Self {
            peer: peer.to_owned(),
            work: Vec::new(),
            failures: Vec::new(),
            places: Places::default(),
            resolution: Resolution::default(),
        };
        match &options.target {
            Location::Local(target) => plan.downloads(options, target, session).await?,
            Location::Pipe => plan.download_to_pipe(options, session).await?,
            Location::Remote(target) if options.sources == [Location::Pipe] => {
                plan.upload_from_pipe(target, session).await?;
            }
            Location::Remote(target) => plan.uploads(options, target, session).await?,
        }
        if options.rules.replace == Replace::Older {
            plan.resolution = match &options.target {
                Location::Local(target) => local_resolution(target),
                Location::Remote(target) => {
                    session.habits_of(&target.path, false).await?.resolution
                }
                Location::Pipe => Resolution::default(),
            };
        }
        Ok(plan)
    }

    async fn downloads(
        &mut self,
        options: &CopyOptions,
        target: &Path,
        session: &mut Session,
    ) -> Result<(), CopyError> {
        let state = local_state(target);
        let (count, sources) = self.find_sources(options, session).await?;
        let request = Request {
            sources: count,
            recursive: options.recursive,
            target_is_folder: target.as_os_str().as_bytes().ends_with(b"/"),
        };
        check_target(request, state).map_err(|refusal| self.refuse(target.display(), &refusal))?;
        let mut inside = Inside::of_path(target, &options.rules);
        for (source, entry) in sources {
            let name = source.path.name().filter(|_| !source.contents);
            if options.rules.leave_out(name, &entry.kind) {
                continue;
            }
            let label = source.to_string();
            let made = match place(request, state, &entry.kind, source.contents) {
                Ok(place) => {
                    let end = place.below(target, source.path.name().unwrap_or_default());
                    let checked = inside.check(session, &entry.kind, &end, &source.path).await?;
                    checked
                        .and_then(|()| self.download(&source, &entry, target, place, label.clone()))
                }
                Err(refusal) => Err(fault_of(&refusal)),
            };
            if let Err(fault) = made {
                self.fail(label, fault);
            }
        }
        Ok(())
    }

    /// Looks at all sources, and finds what those with wildcards stand for. Returns also how
    /// many sources there are, those that cannot be copied included.
    async fn find_sources(
        &mut self,
        options: &CopyOptions,
        session: &mut Session,
    ) -> Result<(usize, Vec<(Remote, Entry)>), CopyError> {
        let remotes: Vec<&Remote> = options.sources.iter().filter_map(remote).collect();
        let paths: Vec<WirePath> = remotes.iter().map(|source| source.path.clone()).collect();
        let (mut count, mut sources) = (0, Vec::new());
        for (source, answer) in remotes.into_iter().zip(session.stat_all(&paths).await?) {
            for (source, answer) in glob::or_matches(session, source, answer).await? {
                count += 1;
                match answer {
                    Ok(entry) => sources.push((source, entry)),
                    Err(fault) => self.fail(source.to_string(), fault),
                }
            }
        }
        Ok((count, sources))
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
            Place::Inside => {
                let local = WirePath::parse(name)?;
                if !self.places.take(&local, &label)? {
                    return Ok(());
                }
                (Folder::open(target)?, local)
            }
            Place::Itself if target.is_dir() => (Folder::open(target)?, WirePath::root()),
            Place::Itself => split_local(target)?,
        };
        let (folder, remote) = (Arc::new(folder), source.path.clone());
        self.work.push(match entry.kind {
            EntryKind::Folder => Work::DownloadTree(RemoteTree { remote, folder, local, label }),
            _ => {
                let (size, mtime_ns) = (entry.size, entry.mtime_ns);
                Work::Download(Download {
                    remote,
                    folder,
                    local,
                    size,
                    mtime_ns,
                    label,
                    basis: None,
                })
            }
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
        let mut inside = Inside::of_remote(session, &target.path, &options.rules).await?;
        for source in &options.sources {
            let Location::Local(path) = source else { continue };
            let found = look_at(path).and_then(|entry| {
                let (rules, way) = (&options.rules, (request, state));
                let remote = self.place_of(path, &entry.kind, target, way, rules)?;
                Ok(remote.map(|remote| (entry, remote)))
            });
            let made = match found {
                Ok(None) => continue,
                Ok(Some((entry, remote))) => {
                    let checked = inside.check(session, &entry.kind, path, &remote).await?;
                    checked.and_then(|()| self.upload(path, &entry, remote, options.rules.follow))
                }
                Err(fault) => Err(fault),
            };
            if let Err(fault) = made {
                self.fail(path.display().to_string(), fault);
            }
        }
        Ok(())
    }

    /// Where a source of this machine goes; nowhere, if it is left out or was named before.
    fn place_of(
        &mut self,
        path: &Path,
        kind: &EntryKind,
        target: &Remote,
        (request, state): (Request, TargetState),
        rules: &Rules,
    ) -> Result<Option<WirePath>, Fault> {
        let contents = is_contents(path.as_os_str().as_bytes());
        let name = name_of(path).ok().filter(|_| !contents);
        if rules.leave_out(name, kind) {
            return Ok(None);
        }
        let place = place(request, state, kind, contents).map_err(|refusal| fault_of(&refusal))?;
        if target.path.is_root() {
            let text = "the target names no export; use HOST:/EXPORT/PATH";
            return Err(Fault::new(Code::BadPath, text));
        }
        if place == Place::Itself {
            return Ok(Some(target.path.clone()));
        }
        let name = WirePath::parse(name_of(path)?)?;
        let is_new = self.places.take(&name, &path.display().to_string())?;
        Ok(is_new.then(|| target.path.join(&name)))
    }

    fn upload(
        &mut self,
        path: &Path,
        entry: &Entry,
        remote: WirePath,
        follow: bool,
    ) -> Result<(), Fault> {
        let label = path.display().to_string();
        self.work.push(match entry.kind {
            EntryKind::Folder => {
                // Only who may read it anyway has links of his own tree followed out of it.
                let folder = if follow { Folder::open_free(path)? } else { Folder::open(path)? };
                Work::UploadTree(LocalTree { folder: Arc::new(folder), remote, label })
            }
            _ => {
                let source = UploadSource::Path(path.to_owned());
                let (size, mtime_ns) = (entry.size, entry.mtime_ns);
                Work::Upload(Upload { source, remote, size, mtime_ns, label, basis: None })
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
