//! The exports that one client may use, and whether it may write there. Decided once, when the
//! session begins: a session ends when its credentials change. Never opens a file: `files` does.

use crate::config::export::Mode;
use crate::exports::open::{ExportFolder, Exports};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbatim_control::Who;
use verbatim_proto::{Code, Fault, WirePath};

/// The identity and address of a client, which access rules check.
pub(crate) struct ClientIdentity<'a> {
    pub who: &'a Who,
    pub address: IpAddr,
}

impl ClientIdentity<'_> {
    /// Its access mode in an export; `None` if the export does not exist for it.
    fn mode_in(&self, name: &[u8], export: &ExportFolder) -> Option<Mode> {
        if !export.acl.admits(self.who, self.address) {
            return None;
        }
        let may_write = match self.who {
            Who::Token(token) => token.may_write(str::from_utf8(name).ok()?)?,
            Who::Certificate(named) => export.acl.grant_to(&named.name).unwrap_or(true),
            Who::Local | Who::Key(..) | Who::Anonymous => true,
        };
        Some(if may_write { export.mode } else { Mode::ReadOnly })
    }
}

/// The exports as one client sees them.
pub(crate) struct ClientView {
    exports: Exports,
    /// All exports hidden from lists, also those that this client may not use.
    hidden: Vec<Vec<u8>>,
    /// Whether the client has named a hidden export.
    used_hidden: Arc<AtomicBool>,
    used: Mutex<UsedExports>,
    /// Sync targets that the session has locked, export first: no link is followed below them.
    /// Bounded by the locks of a session.
    locked_targets: Mutex<Vec<(WirePath, Arc<ExportFolder>)>>,
}

/// The links and the restricted exports that a session has used: a link is refused if a used
/// export forbids it, and an export if a live link does.
#[derive(Default)]
struct UsedExports {
    /// The number of links of each port.
    gids: BTreeMap<[u8; 16], usize>,
    gid_restricted: BTreeMap<Vec<u8>, Arc<ExportFolder>>,
    /// Whether an export was named at all.
    named: bool,
    /// Whether an unencrypted link may exist.
    plain: bool,
    /// A used export that requires encryption.
    sealed: Option<Vec<u8>>,
}

impl ClientView {
    /// Selects the exports that a client may use, read-only where it may not write.
    pub fn of(all: &Exports, visitor: &ClientIdentity<'_>) -> Self {
        let seen = |(name, export): (&Vec<u8>, &Arc<ExportFolder>)| {
            let mode = visitor.mode_in(name, export)?;
            let export = match mode == export.mode {
                true => export.clone(),
                false => Arc::new(ExportFolder { mode, ..(**export).clone() }),
            };
            Some((name.clone(), export))
        };
        let exports = all.iter().filter_map(seen).collect();
        let hidden = all.iter().filter(|(_, export)| export.acl.hidden);
        let hidden = hidden.map(|(name, _)| name.clone()).collect();
        let (used_hidden, used, locked_targets) = Default::default();
        Self { exports, hidden, used_hidden, used, locked_targets }
    }

    /// Turns true when the client names a hidden export: from then on its files and errors are not
    /// shown, because they contain names.
    pub fn used_hidden(&self) -> Arc<AtomicBool> {
        self.used_hidden.clone()
    }

    /// Follows no link below a sync target from now on: its listing followed none, so writes must
    /// not go through one.
    pub fn lock_target(&self, path: &WirePath) -> Result<(), Fault> {
        let (export, below) = self.resolve(path)?;
        let folder = Arc::new(export.folder.plain_below(&below)?);
        let mut locked_targets = self.locked_targets.lock().unwrap_or_else(PoisonError::into_inner);
        locked_targets.push((path.clone(), Arc::new(ExportFolder { folder, ..(*export).clone() })));
        Ok(())
    }

    /// The export of a path below a locked target, which follows no links.
    fn locked_targets(&self, path: &WirePath) -> Option<Arc<ExportFolder>> {
        let locked_targets = self.locked_targets.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(target, _): &&(WirePath, _)| path == target || path.is_below(target);
        locked_targets.iter().find(of).map(|(_, export)| export.clone())
    }

    /// Whether the client may give files of an export to other users.
    pub fn may_give_away(&self) -> bool {
        let may =
            |export: &Arc<ExportFolder>| export.mode == Mode::ReadWrite && export.rules.give_away;
        self.exports.values().any(may)
    }

    /// The export names in a listing.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let shown = self.exports.iter().filter(|(_, export)| !export.acl.hidden);
        shown.map(|(name, _)| name.as_slice())
    }

    /// Admits a link to an RDMA port, given the exports used so far. The port counts as used until
    /// the result is dropped.
    pub fn use_gid(self: &Arc<Self>, gid: [u8; 16]) -> Result<GidUse, Fault> {
        let mut used = self.used();
        match used.gid_restricted.iter().find(|(_, export)| !export.acl.admits_gid(&gid)) {
            Some((name, _)) => Err(gid_refused(name, &gid)),
            None => {
                *used.gids.entry(gid).or_default() += 1;
                Ok(GidUse { view: self.clone(), gid })
            }
        }
    }

    /// Returns why the next link must be inside TLS, if it must. A plain link makes exports that
    /// require encryption unusable for the rest of the session. So before the client has named an
    /// export, every export that it may use counts.
    pub fn must_seal(&self) -> Option<String> {
        let mut used = self.used();
        if let Some(name) = &used.sealed {
            return Some(format!("data of {} moves encrypted only", String::from_utf8_lossy(name)));
        }
        if !used.named && self.exports.values().any(|export| export.acl.sealed) {
            return Some("some data of this server moves encrypted only".into());
        }
        used.plain = true;
        None
    }

    /// Whether any export of this client restricts RDMA ports.
    pub fn restricts_gids(&self) -> bool {
        self.exports.values().any(|export| !export.acl.gids.is_empty())
    }

    /// Whether all exports used so far admit this RDMA port.
    pub fn admits_gid(&self, gid: &[u8; 16]) -> bool {
        self.used().gid_restricted.values().all(|export| export.acl.admits_gid(gid))
    }

    /// Like `resolve`, for a transfer of data: refused while the session has links to an RDMA port
    /// that the export does not admit. Sessions end those links first.
    pub fn resolve_for_data(
        &self,
        path: &WirePath,
    ) -> Result<(Arc<ExportFolder>, WirePath), Fault> {
        let (export, rest) = self.resolve(path)?;
        match self.used().gids.keys().find(|gid| !export.acl.admits_gid(gid)) {
            Some(gid) => Err(gid_refused(path.split_first().map_or(b"", |(name, _)| name), gid)),
            None => Ok((export, rest)),
        }
    }

    fn used(&self) -> MutexGuard<'_, UsedExports> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the export of a path, and the path within it. To a client without access an export
    /// does not exist. From then on RDMA ports that the export does not admit are refused.
    pub fn resolve(&self, path: &WirePath) -> Result<(Arc<ExportFolder>, WirePath), Fault> {
        let (name, rest) = path.split_first().ok_or_else(|| {
            Fault::new(Code::BadPath, "the path names no export; use HOST:/EXPORT/PATH")
        })?;
        if self.hidden.iter().any(|hidden| hidden == name) {
            self.used_hidden.store(true, Ordering::Relaxed);
        }
        let export = self.exports.get(name).ok_or_else(|| {
            let text = format!("no export is called {}", String::from_utf8_lossy(name));
            Fault::new(Code::NotFound, text)
        })?;
        let mut used = self.used();
        used.named = true;
        if !export.acl.gids.is_empty() {
            used.gid_restricted.insert(name.to_vec(), export.clone());
        }
        if export.acl.sealed {
            if used.plain {
                return Err(plain_refused(name));
            }
            used.sealed.get_or_insert_with(|| name.to_vec());
        }
        drop(used);
        Ok((self.locked_targets(path).unwrap_or_else(|| export.clone()), rest))
    }
}

/// A link's use of an RDMA port; dropping it ends the use.
pub(crate) struct GidUse {
    view: Arc<ClientView>,
    pub gid: [u8; 16],
}

impl Drop for GidUse {
    fn drop(&mut self) {
        let mut used = self.view.used();
        let count = used.gids.get_mut(&self.gid).expect("a passage is counted");
        *count -= 1;
        if *count == 0 {
            used.gids.remove(&self.gid);
        }
    }
}

fn gid_refused(name: &[u8], gid: &[u8; 16]) -> Fault {
    let (name, gid) = (String::from_utf8_lossy(name), Ipv6Addr::from(*gid));
    let text = format!(
        "data of {name} may not move to the RDMA port {gid}; use --transport tcp, or ask who \
         runs the server to add it to gids"
    );
    Fault::new(Code::Denied, text)
}

fn plain_refused(name: &[u8]) -> Fault {
    let name = String::from_utf8_lossy(name);
    let text = format!(
        "data of {name} moves encrypted only, and this session has links that are not; copy it \
         with a command of its own"
    );
    Fault::new(Code::Denied, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::acl::Acl;
    use verbatim_control::{ClientKey, Token};
    use verbatim_files::{Folder, Rules};

    fn exports(dir: &std::path::Path) -> Exports {
        let open = |mode| {
            let folder = Arc::new(Folder::open(dir).unwrap());
            let (rules, acl) = (Rules::of_user(), Acl::default());
            Arc::new(ExportFolder { folder, mode, rules, acl, quota: None })
        };
        let named = |(name, mode): (&str, Mode)| (name.as_bytes().to_vec(), open(mode));
        let modes = [("ckpt", Mode::ReadWrite), ("data", Mode::ReadOnly), ("in", Mode::ReadWrite)];
        modes.into_iter().map(named).collect()
    }

    fn visitor(who: &Who) -> ClientIdentity<'_> {
        ClientIdentity { who, address: IpAddr::from([10, 0, 0, 1]) }
    }

    fn token(grants: &[&str]) -> Who {
        let grants = grants.iter().map(|text| text.parse().unwrap()).collect();
        let key = ClientKey::generate().unwrap().public();
        Who::Token(Arc::new(Token::new("alice", key, grants, None).unwrap()))
    }

    fn seen(view: &ClientView) -> Vec<(String, Mode)> {
        let shown = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        view.exports.iter().map(|(name, export)| (shown(name), export.mode)).collect()
    }

    #[test]
    fn a_token_sees_its_exports_and_never_more_than_they_allow() {
        use Mode::{ReadOnly, ReadWrite};
        let dir = tempfile::tempdir().unwrap();
        let all = exports(dir.path());
        for (grants, expected) in [
            (&["ckpt:rw", "data:rw"][..], &[("ckpt", ReadWrite), ("data", ReadOnly)][..]),
            (&["ckpt:ro"], &[("ckpt", ReadOnly)]),
            (&["*:ro"], &[("ckpt", ReadOnly), ("data", ReadOnly), ("in", ReadOnly)]),
            (&["none:rw"], &[]),
        ] {
            let who = token(grants);
            let view = ClientView::of(&all, &visitor(&who));
            let expected: Vec<_> =
                expected.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect();
            assert_eq!(seen(&view), expected, "{grants:?}");
        }
        assert_eq!(all[&b"ckpt"[..].to_vec()].mode, ReadWrite, "others see what they saw");
    }

    #[test]
    fn who_came_in_by_key_sees_all() {
        let dir = tempfile::tempdir().unwrap();
        let view = ClientView::of(&exports(dir.path()), &visitor(&Who::Local));
        assert_eq!(view.names().count(), 3);
    }

    #[test]
    fn what_is_not_seen_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let who = token(&["data:ro"]);
        let view = ClientView::of(&exports(dir.path()), &visitor(&who));
        let said = |path: &[u8]| match view.resolve(&WirePath::parse(path).unwrap()) {
            Ok((_, below)) => below.to_string(),
            Err(fault) => fault.text,
        };
        assert_eq!(said(b"data/a/b"), "a/b");
        assert_eq!(said(b"ckpt/a"), "no export is called ckpt");
        assert_eq!(said(b"nowhere/a"), "no export is called nowhere");
        assert!(said(b"").contains("names no export"));
    }

    /// The exports, with another gate for one of them.
    fn with_acl(dir: &std::path::Path, name: &str, acl: Acl) -> Exports {
        let mut all = exports(dir);
        let export = ExportFolder { acl, ..(*all[name.as_bytes()]).clone() };
        all.insert(name.as_bytes().to_vec(), Arc::new(export));
        all
    }

    #[test]
    fn a_hidden_export_is_not_listed_and_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let all = with_acl(dir.path(), "data", Acl { hidden: true, ..Acl::default() });
        let view = ClientView::of(&all, &visitor(&Who::Anonymous));
        assert_eq!(view.names().collect::<Vec<_>>(), [&b"ckpt"[..], b"in"]);
        assert!(view.resolve(&WirePath::parse(b"data/a").unwrap()).is_ok());
    }

    #[test]
    fn a_gate_that_does_not_open_hides_its_export() {
        let dir = tempfile::tempdir().unwrap();
        let addresses = vec!["192.0.2.0/24".parse().unwrap()];
        let all = with_acl(dir.path(), "data", Acl { addresses, ..Acl::default() });
        let view = ClientView::of(&all, &visitor(&Who::Anonymous));
        let fault = view.resolve(&WirePath::parse(b"data/a").unwrap()).err().unwrap();
        assert_eq!(fault.text, "no export is called data");
    }

    #[test]
    fn an_export_and_a_port_it_does_not_admit_never_meet() {
        let dir = tempfile::tempdir().unwrap();
        let gids = vec!["10.0.0.0/8".parse().unwrap()];
        let all = with_acl(dir.path(), "data", Acl { gids, ..Acl::default() });
        let gid = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let (good, bad) = (gid("::ffff:10.0.0.1"), gid("fe80::1"));
        let (data, other) =
            (WirePath::parse(b"data/a").unwrap(), WirePath::parse(b"in/a").unwrap());
        // The export first: the port is refused.
        let view = Arc::new(ClientView::of(&all, &visitor(&Who::Local)));
        assert!(view.restricts_gids());
        view.resolve(&data).unwrap();
        assert_eq!(view.use_gid(bad).err().unwrap().code, Code::Denied);
        let _good = view.use_gid(good).unwrap();
        view.resolve_for_data(&data).unwrap();
        // The port first: its data does not move until the port is left, and others' does.
        let view = Arc::new(ClientView::of(&all, &visitor(&Who::Local)));
        let links = [view.use_gid(bad).unwrap(), view.use_gid(bad).unwrap()];
        let _good = view.use_gid(good).unwrap();
        assert!(view.admits_gid(&bad), "no export that cares was used");
        let fault = view.resolve_for_data(&data).err().unwrap();
        assert!(
            fault.text.contains("fe80::1") && fault.text.contains("--transport tcp"),
            "{fault}"
        );
        assert!(view.resolve(&data).is_ok(), "what it is may be told");
        assert!(!view.admits_gid(&bad) && view.admits_gid(&good));
        view.resolve_for_data(&other).unwrap();
        // Until its last link is gone.
        let [first, second] = links;
        drop(first);
        assert!(view.resolve_for_data(&data).is_err());
        drop(second);
        view.resolve_for_data(&data).unwrap();
        assert_eq!(view.use_gid(bad).err().unwrap().code, Code::Denied, "and it stays out");
    }

    #[test]
    fn an_encrypted_export_and_a_plain_link_never_meet() {
        let dir = tempfile::tempdir().unwrap();
        let all = with_acl(dir.path(), "data", Acl { sealed: true, ..Acl::default() });
        let path = |text: &str| WirePath::parse(text.as_bytes()).unwrap();
        // Nothing is named yet: the link might carry data of it.
        let view = ClientView::of(&all, &visitor(&Who::Local));
        assert!(view.must_seal().is_some());
        view.resolve(&path("data/a")).unwrap();
        assert!(view.must_seal().unwrap().contains("data of data"));
        // The export first, then others: still sealed.
        view.resolve(&path("in/a")).unwrap();
        assert!(view.must_seal().is_some());
        // A plain link first: the export is refused, and others are not.
        let view = ClientView::of(&all, &visitor(&Who::Local));
        view.resolve(&path("in/a")).unwrap();
        assert_eq!(view.must_seal(), None);
        let fault = view.resolve(&path("data/a")).err().unwrap();
        assert_eq!(fault.code, Code::Denied);
        assert!(fault.text.contains("encrypted only"), "{fault}");
        assert_eq!(view.must_seal(), None, "and stays refused");
        assert!(view.resolve(&path("data/a")).is_err());
        view.resolve(&path("in/a")).unwrap();
    }
}
