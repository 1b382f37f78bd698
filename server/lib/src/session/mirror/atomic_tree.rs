//! Atomic trees (`--atomic`): the server builds a tree beside the target (`files::stage`), and
//! exchanges it with the target when the client publishes it. Owns the staging trees of a session,
//! and locks tree and target until then. Other clients that want either get the owner's name.
//! `mirror` calls it.

use crate::exports::client_view::ClientView;
use crate::exports::open::ExportFolder;
use crate::session::client::Client;
use crate::session::end::End;
use crate::session::sync_lock::{LockOwner, LockRegistry, RunLock, StagingTree, wait_for_lock};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use verbatim_files::hold::{above, which};
use verbatim_files::stage::Stage;
use verbatim_proto::mirror::{About, Staged};
use verbatim_proto::{Code, Digest, Fault, Twin, WirePath};
use verbatim_serve::Jobs;

/// A staging tree beside its target.
pub(crate) struct Staging {
    /// The target, export first.
    target: WirePath,
    key: Digest,
    staged: Staged,
    export: Arc<ExportFolder>,
    /// Present until drop.
    stage: Option<Stage>,
    listed: Option<ListedLocks>,
    run: Option<Arc<RunLock>>,
}

impl Staging {
    fn stage(&self) -> &Stage {
        self.stage.as_ref().expect("it is there until this is dropped")
    }

    /// Opens the target, to walk it.
    pub fn open_target(&self) -> Option<OwnedFd> {
        self.stage().open_target()
    }
}

impl StagingTree for Staging {
    fn path(&self) -> &WirePath {
        &self.staged.path
    }

    fn revert(&self, path: &WirePath, below: &WirePath) -> Result<(), Fault> {
        self.stage().revert(&self.export.folder, path, below)
    }
}

impl Drop for Staging {
    /// Hands the lock of the folder that is the target now to the run, for its next session.
    fn drop(&mut self) {
        self.listed = None;
        let target = self.stage.take().filter(|_| self.run.is_some()).and_then(Stage::into_target);
        if let Some((hold, run)) = target.zip(self.run.as_ref()) {
            run.put(hold);
        }
    }
}

/// Folders that the registry lists as locked.
struct ListedLocks {
    folders: Vec<Twin>,
    registry: Arc<LockRegistry>,
}

impl ListedLocks {
    fn new(registry: &Arc<LockRegistry>, stage: &Stage, who: &str) -> Self {
        let target = stage.target().map(|hold| hold.folder);
        let folders: Vec<Twin> = target.into_iter().chain([stage.tree().folder]).collect();
        folders.iter().for_each(|&folder| registry.list(folder, who));
        Self { folders, registry: registry.clone() }
    }
}

impl Drop for ListedLocks {
    fn drop(&mut self) {
        self.folders.iter().for_each(|&folder| self.registry.unlist(folder));
    }
}

/// The unpublished trees of a session.
pub(super) struct StagingTrees {
    trees: Vec<Arc<Staging>>,
    /// Number of trees that were published, or are being published.
    published: usize,
    jobs: Jobs<StagingEvent>,
}

/// Answers of jobs.
pub(crate) enum StagingEvent {
    Staged(u32, Result<(Staged, Box<Staging>), Fault>),
    Published(u32, Result<(), Fault>),
}

impl StagingTrees {
    /// No tree yet.
    pub fn new(jobs: Jobs<StagingEvent>) -> Self {
        Self { trees: Vec::new(), published: 0, jobs }
    }

    /// Whether the session has no unpublished tree.
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// The number of trees, published or not.
    pub fn count(&self) -> usize {
        self.trees.len() + self.published
    }

    /// The answer about the tree beside this target, if the session has one.
    pub fn find(&self, target: &WirePath, key: Digest) -> Option<Staged> {
        let known = self.trees.iter().find(|it| it.target == *target && it.key == key);
        known.map(|known| known.staged.clone())
    }

    /// Builds a tree beside a target, or finds an earlier one.
    pub fn build(
        &self,
        client: &Client,
        run: Option<Arc<RunLock>>,
        request: u32,
        (path, key): (WirePath, Digest),
    ) {
        let (registry, who) = (client.services.locks.clone(), client.view.who.clone());
        let reach = client.reach.clone();
        let mut memory = client.memory.empty();
        self.jobs.run(move || {
            let owner = LockOwner { registry: &registry, who: &who, run: run.as_ref() };
            let answer = build(&reach, &owner, path, key, &mut |bytes| memory.resize(bytes));
            let answer = answer.map(|staging| (staging.staged.clone(), Box::new(staging)));
            StagingEvent::Staged(request, answer)
        });
    }

    /// Adds a tree that a job has built.
    pub fn add(&mut self, staging: Box<Staging>) {
        self.trees.push(staging.into());
    }

    /// The session's tree at a path.
    pub fn at(&self, path: &WirePath) -> Option<Arc<Staging>> {
        self.trees.iter().find(|staging| staging.staged.path == *path).cloned()
    }

    /// The trees, for a job that changes them.
    pub fn for_jobs(&self) -> Vec<Arc<dyn StagingTree>> {
        self.trees.iter().map(|tree| tree.clone() as Arc<dyn StagingTree>).collect()
    }

    /// Exchanges a tree with its target.
    pub fn publish(&mut self, request: u32, path: &WirePath, changed: bool) -> Result<(), End> {
        let Some(at) = self.trees.iter().position(|it| it.target == *path) else {
            let text = "the client published a tree that is not there";
            return Err(End::refused(Code::Protocol, text));
        };
        // Removed first: a second exchange would restore the old tree.
        let staging = self.trees.remove(at);
        self.published += 1;
        self.jobs.run(move || {
            let answer = staging.stage().finish(changed);
            staging.export.folder.forget_parents();
            StagingEvent::Published(request, answer)
        });
        Ok(())
    }

    /// Drops all trees, except those that jobs still change.
    pub fn clear(&mut self) {
        self.trees.clear();
    }
}

/// Builds a tree beside a target, or finds one that the same client left.
fn build(
    reach: &ClientView,
    owner: &LockOwner<'_>,
    target: WirePath,
    key: Digest,
    room: &mut dyn FnMut(usize) -> bool,
) -> Result<Staging, Fault> {
    let (export, below) = reach.resolve(&target)?;
    export.writable("change", &target)?;
    if below.is_root() {
        let text = format!("{target} is an export, which cannot be exchanged; name a folder in it");
        return Err(Fault::new(Code::BadPath, text));
    }
    // Two clients never share a staging tree.
    let own = Digest::of(&[&key.0, owner.who.as_bytes()].concat());
    let may = |bytes| export.may_write(bytes);
    let open = || export.folder.open_folder(&below);
    let stage = wait_for_lock(|| {
        let kept = open().ok().and_then(|fd| owner.take_kept(which(fd).ok()?));
        // Listed again below, together with the staging tree.
        kept.iter().for_each(|hold| owner.registry.unlist(hold.folder));
        Stage::prepare(&export.folder, &below, &own, kept, &may, room)
    });
    let stage = stage.map_err(|error| owner.why_not(error, &target, open))?;
    let path = target.parent().with(stage.path().name().unwrap_or_default())?;
    let about = About {
        boot: verbatim_files::journal::boot_id().to_vec(),
        root: stage.target().map(|hold| hold.folder),
        above: above(stage.tree()),
        keeps: export.rules.into(),
        folds_case: export.folder.folds_case(stage.path()),
    };
    let staged = Staged { about, path };
    reach.lock_target(&staged.path)?;
    let listed = Some(ListedLocks::new(owner.registry, &stage, owner.who));
    let run = owner.run.cloned();
    Ok(Staging { target, key, staged, export, stage: Some(stage), listed, run })
}
