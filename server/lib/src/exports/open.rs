//! Open exports: each with its folder, its access rules and its quota, built from the
//! configuration when the server starts. Knows no client and no session; `client_view` selects
//! the exports of one client.

use crate::config::export::{Encryption, Export, Mode, Owner};
use crate::exports::acl::Acl;
use crate::exports::quota::{self, Quota, QuotaUsage};
use std::collections::BTreeMap;
use std::sync::Arc;
use verbatim_files::{Charge, Cost, Folder, Rules, Source};
use verbatim_proto::{Code, Fault, WirePath};

/// An export, open.
#[derive(Clone)]
pub(crate) struct ExportFolder {
    pub folder: Arc<Folder>,
    pub mode: Mode,
    /// Which metadata of uploads is applied.
    pub rules: Rules,
    /// Who may use it.
    pub acl: Acl,
    /// Its quota, if any. Its folder charges the same quota before it creates an inode.
    pub quota: Option<Arc<Quota>>,
}

impl ExportFolder {
    /// Fails for a read-only export; `verb` names the operation.
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
    /// Charges bytes to its quota; fails if they exceed it.
    pub fn may_write(&self, bytes: u64) -> Result<(), Fault> {
        quota::take(self.quota.as_ref(), bytes)
    }
}

/// The exports by name.
pub(crate) type Exports = BTreeMap<Vec<u8>, Arc<ExportFolder>>;

/// Opens the folders of these exports. `written` is the quota usage of earlier runs.
pub(crate) fn open_exports(configured: &[Export], written: &QuotaUsage) -> Result<Exports, Fault> {
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
        let (mode, acl) = (export.mode, acl_of(export));
        let open = Arc::new(ExportFolder { folder, mode, rules, acl, quota });
        exports.insert(export.name.clone().into_bytes(), open);
    }
    Ok(exports)
}

/// Opens a source in its export.
pub(crate) fn open_source(export: &ExportFolder, path: &WirePath) -> Result<Source, Fault> {
    Source::open(&export.folder, path, path)
}

/// The access rules of an export.
fn acl_of(export: &Export) -> Acl {
    let (tokens, addresses, gids) =
        (export.tokens.clone(), export.addresses.clone(), export.gids.clone());
    let certificates = export.certificates.iter().map(|text| certificate_grant(text)).collect();
    let sealed = export.encryption == Encryption::Required;
    Acl { tokens, certificates, addresses, gids, hidden: export.hidden, sealed }
}

/// The quota of an export, if it has one.
fn quota_of(export: &Export, before: &QuotaUsage) -> Option<Arc<Quota>> {
    let limit = |max: u64| if max > 0 { max } else { u64::MAX };
    let max = Cost { bytes: limit(export.quota_mb << 20), files: limit(export.quota_files) };
    export.has_quota().then(|| Arc::new(Quota::new(&export.name, max, before.of(&export.name))))
}

/// Parses a certificate rule: a name, read-only if `:ro` follows.
fn certificate_grant(text: &str) -> (String, bool) {
    let (name, write) = match text.strip_suffix(":ro") {
        Some(name) => (name, false),
        None => (text.strip_suffix(":rw").unwrap_or(text), true),
    };
    (name.to_ascii_lowercase(), write)
}
