//! Trees that the server builds beside a target for a mirror (`files::stage`),
//! and puts in its place, once, when the client says that all of it is there. A session
//! holds both until then, and whoever else wants them is told by whom. Called by `mirror`.

use super::holding::{wait_for_hold, why_not};
use super::mirror::MirrorEvent;
use super::{End, Event, Session, Shared};
use crate::reach::{ExportFolder, Reach};
use std::sync::{Arc, PoisonError};
use verbatim_files::hold::above;
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
    stage: Arc<Stage>,
    _listed: Listed,
}

/// Folders that all sessions know to be held.
struct Listed {
    folders: Vec<Twin>,
    shared: Arc<Shared>,
}

impl Listed {
    fn new(shared: &Arc<Shared>, stage: &Stage, who: &str) -> Self {
        let target = stage.target().map(|hold| hold.folder);
        let folders: Vec<Twin> = target.into_iter().chain([stage.tree().folder]).collect();
        let mut holders = shared.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.extend(folders.iter().map(|&folder| (folder, who.to_owned())));
        drop(holders);
        Self { folders, shared: shared.clone() }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut holders = self.shared.holders.lock().unwrap_or_else(PoisonError::into_inner);
        self.folders.iter().for_each(|folder| drop(holders.remove(folder)));
    }
}

impl Session {
    pub(super) fn stage(&mut self, request: u32, path: WirePath, key: Digest) -> Result<(), End> {
        let known = self.mirrors.stages.iter().find(|it| it.target == path && it.key == key);
        if let Some(known) = known {
            // A session that has it may ask again.
            let answer = Ok(known.told.clone());
            return self.send(ServerMessage::Mirror(MirrorReply::Staged { request, answer }));
        }
        self.may_hold()?;
        let (shared, who) = (self.shared.clone(), self.view.who.clone());
        let reach = self.reach.clone();
        self.job(move || {
            let answer = build(&shared, &reach, &who, path, key);
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
        self.send(ServerMessage::Mirror(MirrorReply::Staged { request, answer }))
    }

    /// The tree that this session builds at a path.
    pub(super) fn stage_at(&self, path: &WirePath) -> Option<Arc<Stage>> {
        let mut stages = self.mirrors.stages.iter();
        stages.find(|staging| staging.told.path == *path).map(|staging| staging.stage.clone())
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
        self.job(move || {
            let answer = staging.stage.finish(changed);
            staging.export.folder.forget_parents();
            Event::Mirror(MirrorEvent::Published(request, answer))
        });
        Ok(())
    }
}

/// Builds a tree beside a target, or finds one that the same client left.
fn build(
    shared: &Arc<Shared>,
    reach: &Reach,
    who: &str,
    target: WirePath,
    key: Digest,
) -> Result<Staging, Fault> {
    let (export, below) = reach.resolve(&target)?;
    export.writable("change", &target)?;
    if below.is_root() {
        let text = format!("{target} is an export, which cannot be exchanged; name a folder in it");
        return Err(Fault::new(Code::BadPath, text));
    }
    // Of two clients each has a tree of its own.
    let own = Digest::of(&[&key.0, who.as_bytes()].concat());
    let may = |bytes| export.may_write(bytes);
    let stage = wait_for_hold(|| Stage::prepare(&export.folder, &below, &own, None, &may));
    let stage = stage
        .map_err(|error| why_not(shared, error, &target, || export.folder.open_folder(&below)))?;
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
    let listed = Listed::new(shared, &stage, who);
    Ok(Staging { target, key, told, export, stage: Arc::new(stage), _listed: listed })
}
