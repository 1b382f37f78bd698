//! Trees that the server builds beside a target for a mirror (`files::stage`),
//! and puts in its place, once, when the client says that all of it is there. A session
//! holds both until then, and whoever else wants them is told by whom. Called by `mirror`.

use super::Session;
use super::end::End;
use super::event::Event;
use super::holding::{Holder, Kept, LockRegistry, StagingTree, wait_for_hold};
use super::mirror::MirrorEvent;
use crate::exports::client_view::Reach;
use crate::exports::open::ExportFolder;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use verbatim_files::hold::{above, which};
use verbatim_files::stage::Stage;
use verbatim_proto::message::ServerMessage;
use verbatim_proto::mirror::{About, Staged};
use verbatim_proto::{Code, Digest, Fault, MirrorReply, Twin, WirePath};

/// A tree beside its target, and where that is.
pub(crate) struct Staging {
    /// The target, export first.
    target: WirePath,
    key: Digest,
    told: Staged,
    export: Arc<ExportFolder>,
    /// There until this is dropped.
    stage: Option<Stage>,
    listed: Option<Listed>,
    kept: Option<Arc<Kept>>,
}

impl Staging {
    fn stage(&self) -> &Stage {
        self.stage.as_ref().expect("it is there until this is dropped")
    }

    /// The target as it is, opened to be walked.
    pub fn open_target(&self) -> Option<OwnedFd> {
        self.stage().open_target()
    }
}

impl StagingTree for Staging {
    fn path(&self) -> &WirePath {
        &self.told.path
    }

    fn revert(&self, path: &WirePath, below: &WirePath) -> Result<(), Fault> {
        self.stage().revert(&self.export.folder, path, below)
    }
}

impl Drop for Staging {
    /// What is the target now is kept for the next session of the run, if it is one of some.
    fn drop(&mut self) {
        self.listed = None;
        let target = self.stage.take().filter(|_| self.kept.is_some()).and_then(Stage::into_target);
        if let Some((hold, kept)) = target.zip(self.kept.as_ref()) {
            kept.put(hold);
        }
    }
}

/// Folders that all sessions know to be held.
struct Listed {
    folders: Vec<Twin>,
    registry: Arc<LockRegistry>,
}

impl Listed {
    fn new(registry: &Arc<LockRegistry>, stage: &Stage, who: &str) -> Self {
        let target = stage.target().map(|hold| hold.folder);
        let folders: Vec<Twin> = target.into_iter().chain([stage.tree().folder]).collect();
        folders.iter().for_each(|&folder| registry.list(folder, who));
        Self { folders, registry: registry.clone() }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.folders.iter().for_each(|&folder| self.registry.unlist(folder));
    }
}

impl Session {
    pub(super) fn stage(&mut self, request: u32, path: WirePath, key: Digest) -> Result<(), End> {
        let known = self.mirrors.stages.iter().find(|it| it.target == path && it.key == key);
        if let Some(known) = known {
            // A session that has it may ask again.
            let answer = Ok(known.told.clone());
            return self
                .client
                .send(ServerMessage::Mirror(MirrorReply::Staged { request, answer }));
        }
        self.may_hold()?;
        let (registry, who) = (self.client.shared.locks.clone(), self.client.view.who.clone());
        let (reach, kept) = (self.client.reach.clone(), self.mirrors.kept.clone());
        let mut memory = self.client.memory.none();
        self.jobs.run(move || {
            let holder = Holder { registry: &registry, who: &who, kept: kept.as_ref() };
            let answer = build(&reach, &holder, path, key, &mut |bytes| memory.hold(bytes));
            let answer = answer.map(|staging| (staging.told.clone(), Box::new(staging)));
            Event::Mirror(MirrorEvent::Staged(request, answer))
        });
        Ok(())
    }

    pub(super) fn staged(
        &mut self,
        request: u32,
        answer: Result<(Staged, Box<Staging>), Fault>,
    ) -> Result<(), End> {
        self.mirrors.holding -= 1;
        let answer = answer.map(|(told, staging)| {
            self.mirrors.stages.push(staging.into());
            told
        });
        self.client.send(ServerMessage::Mirror(MirrorReply::Staged { request, answer }))
    }

    /// The tree that this session builds at a path.
    pub(super) fn staging_at(&self, path: &WirePath) -> Option<Arc<Staging>> {
        self.mirrors.stages.iter().find(|staging| staging.told.path == *path).cloned()
    }

    pub(super) fn publish(
        &mut self,
        request: u32,
        path: &WirePath,
        changed: bool,
    ) -> Result<(), End> {
        let stages = &mut self.mirrors.stages;
        let Some(at) = stages.iter().position(|it| it.target == *path) else {
            let text = "the client published a tree that is not there";
            return Err(End::Refused(Fault::new(Code::Protocol, text)));
        };
        // Taken out: published twice, the old tree would be back in its place.
        let staging = stages.remove(at);
        self.mirrors.published += 1;
        self.jobs.run(move || {
            let answer = staging.stage().finish(changed);
            staging.export.folder.forget_parents();
            Event::Mirror(MirrorEvent::Published(request, answer))
        });
        Ok(())
    }
}

/// Builds a tree beside a target, or finds one that the same client left.
fn build(
    reach: &Reach,
    holder: &Holder<'_>,
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
    // Of two clients each has a tree of its own.
    let own = Digest::of(&[&key.0, holder.who.as_bytes()].concat());
    let may = |bytes| export.may_write(bytes);
    let open = || export.folder.open_folder(&below);
    let stage = wait_for_hold(|| {
        let kept = open().ok().and_then(|fd| holder.take_kept(which(fd).ok()?));
        // Listed again with the tree beside it.
        kept.iter().for_each(|hold| holder.registry.unlist(hold.folder));
        Stage::prepare(&export.folder, &below, &own, kept, &may, room)
    });
    let stage = stage.map_err(|error| holder.why_not(error, &target, open))?;
    let path = target.parent().with(stage.path().name().unwrap_or_default())?;
    let about = About {
        boot: verbatim_files::journal::boot_id().to_vec(),
        root: stage.target().map(|hold| hold.folder),
        above: above(stage.tree()),
        keeps: export.rules.into(),
        folds_case: export.folder.folds_case(stage.path()),
    };
    let told = Staged { about, path };
    reach.hold(&told.path)?;
    let listed = Some(Listed::new(holder.registry, &stage, holder.who));
    let kept = holder.kept.cloned();
    Ok(Staging { target, key, told, export, stage: Some(stage), listed, kept })
}
