//! Plans a copy: stats each source and chooses its target path by the rules of cp. A source that
//! cannot be copied becomes a failure of the plan; the others are copied.

use crate::cp::glob;
use crate::cp::{CopyOptions, remote};
use crate::session::Session;
use crate::session::command_error::CopyError;
use crate::session::overlap::OverlapCheck;
use crate::session::work::Work;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::local_io::local_path::{
    local_resolution, name_of, open_parent, stat_local, target_kind,
};
use verbatim_engine::model::copy_policy::{CopyPolicy, Replace};
use verbatim_engine::model::location::{Location, Remote};
use verbatim_engine::model::placement::{
    CopyArgs, Placement, Refusal, TargetKind, TargetNames, check_target, is_contents, place,
};
use verbatim_engine::model::report::Failure;
use verbatim_engine::transfer::download::Download;
use verbatim_engine::transfer::local_walk::LocalTree;
use verbatim_engine::transfer::remote_scan::RemoteTree;
use verbatim_engine::transfer::upload::{Upload, UploadSource};
use verbatim_files::Folder;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Resolution, WirePath};

/// The work of a copy.
pub(crate) struct Plan {
    /// The server, for failures.
    peer: String,
    pub(crate) work: Vec<Work>,
    /// Failures found before the copy begins.
    pub(crate) failures: Vec<Failure>,
    /// The names that sources have claimed in the target folder.
    pub(crate) target_names: TargetNames,
    /// The resolution of timestamps at the target, if the policy compares them.
    pub(crate) resolution: Resolution,
}

impl Plan {
    /// Plans the work of a copy.
    pub(crate) async fn make(
        options: &CopyOptions,
        peer: &str,
        session: &mut Session,
    ) -> Result<Self, CopyError> {
        let mut plan = Self {
            peer: peer.to_owned(),
            work: Vec::new(),
            failures: Vec::new(),
            target_names: TargetNames::default(),
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
        if options.policy.replace == Replace::Older {
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
        let state = target_kind(target);
        let (count, sources) = self.find_sources(options, session).await?;
        let request = CopyArgs {
            sources: count,
            recursive: options.recursive,
            target_is_folder: target.as_os_str().as_bytes().ends_with(b"/"),
        };
        check_target(request, state).map_err(|refusal| self.refuse(target.display(), &refusal))?;
        let mut overlap = OverlapCheck::of_local(target, &options.policy);
        for (source, entry) in sources {
            let name = source.path.name().filter(|_| !source.contents);
            let label = source.to_string();
            match options.policy.excludes_source(name, &entry.kind) {
                Ok(false) => {}
                Ok(true) => continue,
                Err(fault) => {
                    self.fail(label, fault);
                    continue;
                }
            }
            let made = match place(request, state, &entry.kind, source.contents) {
                Ok(place) => {
                    let end = place.below(target, source.path.name().unwrap_or_default());
                    let checked = overlap.check(session, &entry.kind, &end, &source.path).await?;
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

    /// Stats all sources and expands their wildcards. Returns also the number of sources, with the
    /// failed ones.
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
        place: Placement,
        label: String,
    ) -> Result<(), Fault> {
        let no_export = || Fault::new(Code::BadPath, "name an export: HOST:/EXPORT/PATH");
        let name = source.path.name().ok_or_else(no_export)?;
        let (folder, local) = match place {
            Placement::Inside => {
                let local = WirePath::parse(name)?;
                if !self.target_names.claim(&local, &label)? {
                    return Ok(());
                }
                (Folder::open(target)?, local)
            }
            Placement::AsTarget if target.is_dir() => (Folder::open(target)?, WirePath::root()),
            Placement::AsTarget => open_parent(target)?,
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
            Ok(entry) if entry.kind == EntryKind::Folder => TargetKind::Folder,
            Ok(_) => TargetKind::File,
            // A missing file may be created; a missing export cannot be.
            Err(fault) if fault.code == Code::NotFound && !target.path.parent().is_root() => {
                TargetKind::Missing
            }
            Err(fault) => return Err(ClientError::Fault(fault).into()),
        };
        let request = CopyArgs {
            sources: options.sources.len(),
            recursive: options.recursive,
            target_is_folder: target.is_folder && !target.path.is_root(),
        };
        check_target(request, state).map_err(|refusal| self.refuse(target, &refusal))?;
        let mut overlap = OverlapCheck::of_remote(session, &target.path, &options.policy).await?;
        for source in &options.sources {
            let Location::Local(path) = source else { continue };
            let found = stat_local(path).and_then(|entry| {
                let (policy, way) = (&options.policy, (request, state));
                let remote = self.place_of(path, &entry.kind, target, way, policy)?;
                Ok(remote.map(|remote| (entry, remote)))
            });
            let made = match found {
                Ok(None) => continue,
                Ok(Some((entry, remote))) => {
                    let checked = overlap.check(session, &entry.kind, path, &remote).await?;
                    checked.and_then(|()| self.upload(path, &entry, remote, options.policy.follow))
                }
                Err(fault) => Err(fault),
            };
            if let Err(fault) = made {
                self.fail(path.display().to_string(), fault);
            }
        }
        Ok(())
    }

    /// The remote path of a local source; `None` if it is excluded or a duplicate.
    fn place_of(
        &mut self,
        path: &Path,
        kind: &EntryKind,
        target: &Remote,
        (request, state): (CopyArgs, TargetKind),
        policy: &CopyPolicy,
    ) -> Result<Option<WirePath>, Fault> {
        let contents = is_contents(path.as_os_str().as_bytes());
        let name = name_of(path).ok().filter(|_| !contents);
        if policy.excludes_source(name, kind)? {
            return Ok(None);
        }
        let place = place(request, state, kind, contents).map_err(|refusal| fault_of(&refusal))?;
        if target.path.is_root() {
            let text = "the target names no export; use HOST:/EXPORT/PATH";
            return Err(Fault::new(Code::BadPath, text));
        }
        if place == Placement::AsTarget {
            return Ok(Some(target.path.clone()));
        }
        let name = WirePath::parse(name_of(path)?)?;
        let is_new = self.target_names.claim(&name, &path.display().to_string())?;
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
                // Links out of the tree are followed only if the user asked for it.
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

    pub(crate) fn fail(&mut self, path: String, fault: Fault) {
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
