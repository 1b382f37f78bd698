//! Exports as they are open: each with its folder, its access rules and its quota, made
//! from the configuration when the server starts. Knows no client and no session; what one
//! client sees of them is in `client_view`.

use crate::config::export::{Encryption, Export, Mode, Owner};
use crate::exports::acl::Gate;
use crate::exports::quota::{self, Counts, Quota};
use std::collections::BTreeMap;
use std::sync::Arc;
use verbatim_files::{Charge, Cost, Folder, Rules, Source};
use verbatim_proto::{Code, Fault, WirePath};

/// An export, open.
#[derive(Clone)]
pub(crate) struct ExportFolder {
    pub folder: Arc<Folder>,
    pub mode: Mode,
    /// What of the metadata of uploads is kept.
    pub rules: Rules,
    /// Who may use it.
    pub gate: Gate,
    /// What may still be written into it and made in it, where that is bounded. Its folder asks the
    /// same before anything is made.
    pub quota: Option<Arc<Quota>>,
}

impl ExportFolder {
    /// Refuses to do this to a path where clients may only read.
    pub fn writable(&self, verb: &str, path: &WirePath) -> Result<(), Fault> {
        match self.mode {
            Mode::ReadWrite => Ok(()),
            Mode::ReadOnly => {
                let text = format!("cannot {verb} {path}: the export is read-only");
                Err(Fault::new(Code::ReadOnly, text))
            }
        }
    }
}

impl ExportFolder {
    /// Whether this many bytes may be written into it; takes them from its quota.
    pub fn may_write(&self, bytes: u64) -> Result<(), Fault> {
        quota::take(self.quota.as_ref(), bytes)
    }
}

/// The exports by name.
pub(crate) type Exports = BTreeMap<Vec<u8>, Arc<ExportFolder>>;

/// Opens the folders of these exports. `written` is what was written into them before.
pub(crate) fn open_exports(configured: &[Export], written: &Counts) -> Result<Exports, Fault> {
    let mut exports = Exports::new();
    for export in configured {
        let quota = quota_of(export, written);
        let charge = quota.clone().map(|quota| quota as Arc<dyn Charge>);
        let folder = Folder::open(&export.path)?;
        let folder = Arc::new(folder.crossing(export.cross_mounts).charging(charge));
        let rules = export.rules();
        if export.owner == Owner::Client && !rules.give_away {
            let name = &export.name;
            tracing::warn!(
                name,
                "owner is client, but only root, or a user with keep_chown, can give files away"
            );
        }
        let (mode, gate) = (export.mode, gate_of(export));
        let open = Arc::new(ExportFolder { folder, mode, rules, gate, quota });
        exports.insert(export.name.clone().into_bytes(), open);
    }
    Ok(exports)
}

/// Opens a source in its export.
pub(crate) fn open_source(export: &ExportFolder, path: &WirePath) -> Result<Source, Fault> {
    Source::open(&export.folder, path, path)
}

/// Tells who may use an export.
fn gate_of(export: &Export) -> Gate {
    let (tokens, addresses, gids) =
        (export.tokens.clone(), export.addresses.clone(), export.gids.clone());
    let certificates = export.certificates.iter().map(|text| grant(text)).collect();
    let sealed = export.encryption == Encryption::Required;
    Gate { tokens, certificates, addresses, gids, hidden: export.hidden, sealed }
}

/// Counts what may be written into an export and made in it, where that is bounded.
fn quota_of(export: &Export, before: &Counts) -> Option<Arc<Quota>> {
    let limit = |max: u64| if max > 0 { max } else { u64::MAX };
    let max = Cost { bytes: limit(export.quota_mb << 20), files: limit(export.quota_files) };
    export.has_quota().then(|| Arc::new(Quota::new(&export.name, max, before.of(&export.name))))
}

/// What a name in a certificate may do: `:ro` behind it, or what the export allows.
fn grant(text: &str) -> (String, bool) {
    let (name, write) = match text.strip_suffix(":ro") {
        Some(name) => (name, false),
        None => (text.strip_suffix(":rw").unwrap_or(text), true),
    };
    (name.to_ascii_lowercase(), write)
}
