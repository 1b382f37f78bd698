//! What one client sees of the exports: which of them, and whether it may write
//! there. Owns that decision, made once when a session begins, because a session
//! ends when what it came in with changes. Never opens a file: `files` does.

use crate::config::export::Mode;
use crate::exports::open::{ExportFolder, Exports};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbatim_control::Who;
use verbatim_proto::{Code, Fault, WirePath};

/// Who has come in, as far as exports care.
pub(crate) struct Visitor<'a> {
    pub who: &'a Who,
    pub address: IpAddr,
}

impl Visitor<'_> {
    /// What it may do in an export; none if it may not know of it.
    fn mode_in(&self, name: &[u8], export: &ExportFolder) -> Option<Mode> {
        if !export.gate.admits(self.who, self.address) {
            return None;
        }
        let may_write = match self.who {
            Who::Token(token) => token.may_write(str::from_utf8(name).ok()?)?,
            Who::Certificate(named) => export.gate.grant_to(&named.name).unwrap_or(true),
            Who::Local | Who::Key(..) | Who::Anonymous => true,
        };
        Some(if may_write { export.mode } else { Mode::ReadOnly })
    }
}

/// The exports as one client sees them.
pub(crate) struct Reach {
    exports: Exports,
    /// What is hidden from lists, also what this client may not use.
    hidden: Vec<Vec<u8>>,
    /// Whether the client has named something of that.
    discreet: Arc<AtomicBool>,
    used: Mutex<Used>,
    /// Targets that the session holds, export first: below them no link is followed. As many
    /// as a session may hold.
    held: Mutex<Vec<(WirePath, Arc<ExportFolder>)>>,
}

/// What a session moves data with, and which exports that care it has used: neither may make
/// the other wrong.
#[derive(Default)]
struct Used {
    /// How many links each port has.
    gids: BTreeMap<[u8; 16], usize>,
    picky: BTreeMap<Vec<u8>, Arc<ExportFolder>>,
    /// Whether an export was named at all.
    named: bool,
    /// Whether a link may have been made that others can read.
    plain: bool,
    /// An export that was named and moves encrypted only.
    sealed: Option<Vec<u8>>,
}

impl Reach {
    /// Leaves out what a visitor may not use, and makes read-only what it may only read.
    pub fn of(all: &Exports, visitor: &Visitor<'_>) -> Self {
        let seen = |(name, export): (&Vec<u8>, &Arc<ExportFolder>)| {
            let mode = visitor.mode_in(name, export)?;
            let export = match mode == export.mode {
                true => export.clone(),
                false => Arc::new(ExportFolder { mode, ..(**export).clone() }),
            };
            Some((name.clone(), export))
        };
        let exports = all.iter().filter_map(seen).collect();
        let hidden = all.iter().filter(|(_, export)| export.gate.hidden);
        let hidden = hidden.map(|(name, _)| name.clone()).collect();
        let (discreet, used, held) = Default::default();
        Self { exports, hidden, discreet, used, held }
    }

    /// Turns true when the client names a hidden export: from then on nobody is shown what it
    /// does and what it is told, because both have names in them.
    pub fn discreet(&self) -> Arc<AtomicBool> {
        self.discreet.clone()
    }

    /// Follows no link below the target of a mirror from now on: its tree was told without
    /// following any, so what is written must not go through one.
    pub fn hold(&self, path: &WirePath) -> Result<(), Fault> {
        let (export, below) = self.resolve(path)?;
        let folder = Arc::new(export.folder.plain_below(&below)?);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push((path.clone(), Arc::new(ExportFolder { folder, ..(*export).clone() })));
        Ok(())
    }

    /// The export of a path, as it is used below a target that is held.
    fn held(&self, path: &WirePath) -> Option<Arc<ExportFolder>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(target, _): &&(WirePath, _)| path == target || path.is_below(target);
        held.iter().find(of).map(|(_, export)| export.clone())
    }

    /// Whether the client may give files of an export to other users.
    pub fn may_give_away(&self) -> bool {
        let may =
            |export: &Arc<ExportFolder>| export.mode == Mode::ReadWrite && export.rules.give_away;
        self.exports.values().any(may)
    }

    /// The names a client is told.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let shown = self.exports.iter().filter(|(_, export)| !export.gate.hidden);
        shown.map(|(name, _)| name.as_slice())
    }

    /// Lets a link be made to an RDMA port, given the exports that were used so far. The port
    /// counts as used as long as the passage is kept.
    pub fn use_gid(self: &Arc<Self>, gid: [u8; 16]) -> Result<Passage, Fault> {
        let mut used = self.used();
        match used.picky.iter().find(|(_, export)| !export.gate.admits_gid(&gid)) {
            Some((name, _)) => Err(not_over(name, &gid)),
            None => {
                *used.gids.entry(gid).or_default() += 1;
                Ok(Passage { reach: self.clone(), gid })
            }
        }
    }

    /// Asks whether the next link must be inside TLS, and why. One that need not be makes
    /// exports that move encrypted only unusable for the rest of the session, so as long as
    /// no export was named, every one that the client might name counts.
    pub fn must_seal(&self) -> Option<String> {
        let mut used = self.used();
        if let Some(name) = &used.sealed {
            return Some(format!("data of {} moves encrypted only", String::from_utf8_lossy(name)));
        }
        if !used.named && self.exports.values().any(|export| export.gate.sealed) {
            return Some("some data of this server moves encrypted only".into());
        }
        used.plain = true;
        None
    }

    /// Whether an export that the client may use admits some RDMA ports only.
    pub fn is_picky(&self) -> bool {
        self.exports.values().any(|export| !export.gate.gids.is_empty())
    }

    /// Whether all exports that were used so far admit this RDMA port.
    pub fn admits_gid(&self, gid: &[u8; 16]) -> bool {
        self.used().picky.values().all(|export| export.gate.admits_gid(gid))
    }

    /// The same as `resolve`, of a file whose data is to move: refused while the session has
    /// links to an RDMA port that may not have it. Sessions end those first.
    pub fn resolve_for_data(
        &self,
        path: &WirePath,
    ) -> Result<(Arc<ExportFolder>, WirePath), Fault> {
        let (export, rest) = self.resolve(path)?;
        match self.used().gids.keys().find(|gid| !export.gate.admits_gid(gid)) {
            Some(gid) => Err(not_over(path.split_first().map_or(b"", |(name, _)| name), gid)),
            None => Ok((export, rest)),
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The export a path is in, and the path within it. One that this client may not use does
    /// not exist for it. From then on RDMA ports it does not admit are refused.
    pub fn resolve(&self, path: &WirePath) -> Result<(Arc<ExportFolder>, WirePath), Fault> {
        let (name, rest) = path.split_first().ok_or_else(|| {
            Fault::new(Code::BadPath, "the path names no export; use HOST:/EXPORT/PATH")
        })?;
        if self.hidden.iter().any(|hidden| hidden == name) {
            self.discreet.store(true, Ordering::Relaxed);
        }
        let export = self.exports.get(name).ok_or_else(|| {
            let text = format!("no export is called {}", String::from_utf8_lossy(name));
            Fault::new(Code::NotFound, text)
        })?;
        let mut used = self.used();
        used.named = true;
        if !export.gate.gids.is_empty() {
            used.picky.insert(name.to_vec(), export.clone());
        }
        if export.gate.sealed {
            if used.plain {
                return Err(not_plain(name));
            }
            used.sealed.get_or_insert_with(|| name.to_vec());
        }
        drop(used);
        Ok((self.held(path).unwrap_or_else(|| export.clone()), rest))
    }
}

/// A link to an RDMA port, as far as exports care.
pub(crate) struct Passage {
    reach: Arc<Reach>,
    pub gid: [u8; 16],
}

impl Drop for Passage {
    fn drop(&mut self) {
        let mut used = self.reach.used();
        let count = used.gids.get_mut(&self.gid).expect("a passage is counted");
        *count -= 1;
        if *count == 0 {
            used.gids.remove(&self.gid);
        }
    }
}

fn not_over(name: &[u8], gid: &[u8; 16]) -> Fault {
    let (name, gid) = (String::from_utf8_lossy(name), Ipv6Addr::from(*gid));
    let text = format!(
        "data of {name} may not move to the RDMA port {gid}; use --transport tcp, or ask who \
         runs the server to add it to gids"
    );
    Fault::new(Code::Denied, text)
}

fn not_plain(name: &[u8]) -> Fault {
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
    use crate::exports::acl::Gate;
    use verbatim_control::{ClientKey, Token};
    use verbatim_files::{Folder, Rules};

    fn exports(dir: &std::path::Path) -> Exports {
        let open = |mode| {
            let folder = Arc::new(Folder::open(dir).unwrap());
            let (rules, gate) = (Rules::of_user(), Gate::default());
            Arc::new(ExportFolder { folder, mode, rules, gate, quota: None })
        };
        let named = |(name, mode): (&str, Mode)| (name.as_bytes().to_vec(), open(mode));
        let modes = [("ckpt", Mode::ReadWrite), ("data", Mode::ReadOnly), ("in", Mode::ReadWrite)];
        modes.into_iter().map(named).collect()
    }

    fn visitor(who: &Who) -> Visitor<'_> {
        Visitor { who, address: IpAddr::from([10, 0, 0, 1]) }
    }

    fn token(grants: &[&str]) -> Who {
        let grants = grants.iter().map(|text| text.parse().unwrap()).collect();
        let key = ClientKey::generate().unwrap().public();
        Who::Token(Arc::new(Token::new("alice", key, grants, None).unwrap()))
    }

    fn seen(reach: &Reach) -> Vec<(String, Mode)> {
        let shown = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        reach.exports.iter().map(|(name, export)| (shown(name), export.mode)).collect()
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
            let reach = Reach::of(&all, &visitor(&who));
            let expected: Vec<_> =
                expected.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect();
            assert_eq!(seen(&reach), expected, "{grants:?}");
        }
        assert_eq!(all[&b"ckpt"[..].to_vec()].mode, ReadWrite, "others see what they saw");
    }

    #[test]
    fn who_came_in_by_key_sees_all() {
        let dir = tempfile::tempdir().unwrap();
        let reach = Reach::of(&exports(dir.path()), &visitor(&Who::Local));
        assert_eq!(reach.names().count(), 3);
    }

    #[test]
    fn what_is_not_seen_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let who = token(&["data:ro"]);
        let reach = Reach::of(&exports(dir.path()), &visitor(&who));
        let said = |path: &[u8]| match reach.resolve(&WirePath::parse(path).unwrap()) {
            Ok((_, below)) => below.to_string(),
            Err(fault) => fault.text,
        };
        assert_eq!(said(b"data/a/b"), "a/b");
        assert_eq!(said(b"ckpt/a"), "no export is called ckpt");
        assert_eq!(said(b"nowhere/a"), "no export is called nowhere");
        assert!(said(b"").contains("names no export"));
    }

    /// The exports, with another gate for one of them.
    fn with_gate(dir: &std::path::Path, name: &str, gate: Gate) -> Exports {
        let mut all = exports(dir);
        let export = ExportFolder { gate, ..(*all[name.as_bytes()]).clone() };
        all.insert(name.as_bytes().to_vec(), Arc::new(export));
        all
    }

    #[test]
    fn a_hidden_export_is_not_listed_and_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let all = with_gate(dir.path(), "data", Gate { hidden: true, ..Gate::default() });
        let reach = Reach::of(&all, &visitor(&Who::Anonymous));
        assert_eq!(reach.names().collect::<Vec<_>>(), [&b"ckpt"[..], b"in"]);
        assert!(reach.resolve(&WirePath::parse(b"data/a").unwrap()).is_ok());
    }

    #[test]
    fn a_gate_that_does_not_open_hides_its_export() {
        let dir = tempfile::tempdir().unwrap();
        let addresses = vec!["192.0.2.0/24".parse().unwrap()];
        let all = with_gate(dir.path(), "data", Gate { addresses, ..Gate::default() });
        let reach = Reach::of(&all, &visitor(&Who::Anonymous));
        let fault = reach.resolve(&WirePath::parse(b"data/a").unwrap()).err().unwrap();
        assert_eq!(fault.text, "no export is called data");
    }

    #[test]
    fn an_export_and_a_port_it_does_not_admit_never_meet() {
        let dir = tempfile::tempdir().unwrap();
        let gids = vec!["10.0.0.0/8".parse().unwrap()];
        let all = with_gate(dir.path(), "data", Gate { gids, ..Gate::default() });
        let gid = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let (good, bad) = (gid("::ffff:10.0.0.1"), gid("fe80::1"));
        let (data, other) =
            (WirePath::parse(b"data/a").unwrap(), WirePath::parse(b"in/a").unwrap());
        // The export first: the port is refused.
        let reach = Arc::new(Reach::of(&all, &visitor(&Who::Local)));
        assert!(reach.is_picky());
        reach.resolve(&data).unwrap();
        assert_eq!(reach.use_gid(bad).err().unwrap().code, Code::Denied);
        let _good = reach.use_gid(good).unwrap();
        reach.resolve_for_data(&data).unwrap();
        // The port first: its data does not move until the port is left, and others' does.
        let reach = Arc::new(Reach::of(&all, &visitor(&Who::Local)));
        let links = [reach.use_gid(bad).unwrap(), reach.use_gid(bad).unwrap()];
        let _good = reach.use_gid(good).unwrap();
        assert!(reach.admits_gid(&bad), "no export that cares was used");
        let fault = reach.resolve_for_data(&data).err().unwrap();
        assert!(
            fault.text.contains("fe80::1") && fault.text.contains("--transport tcp"),
            "{fault}"
        );
        assert!(reach.resolve(&data).is_ok(), "what it is may be told");
        assert!(!reach.admits_gid(&bad) && reach.admits_gid(&good));
        reach.resolve_for_data(&other).unwrap();
        // Until its last link is gone.
        let [first, second] = links;
        drop(first);
        assert!(reach.resolve_for_data(&data).is_err());
        drop(second);
        reach.resolve_for_data(&data).unwrap();
        assert_eq!(reach.use_gid(bad).err().unwrap().code, Code::Denied, "and it stays out");
    }

    #[test]
    fn an_encrypted_export_and_a_plain_link_never_meet() {
        let dir = tempfile::tempdir().unwrap();
        let all = with_gate(dir.path(), "data", Gate { sealed: true, ..Gate::default() });
        let path = |text: &str| WirePath::parse(text.as_bytes()).unwrap();
        // Nothing is named yet: the link might carry data of it.
        let reach = Reach::of(&all, &visitor(&Who::Local));
        assert!(reach.must_seal().is_some());
        reach.resolve(&path("data/a")).unwrap();
        assert!(reach.must_seal().unwrap().contains("data of data"));
        // The export first, then others: still sealed.
        reach.resolve(&path("in/a")).unwrap();
        assert!(reach.must_seal().is_some());
        // A plain link first: the export is refused, and others are not.
        let reach = Reach::of(&all, &visitor(&Who::Local));
        reach.resolve(&path("in/a")).unwrap();
        assert_eq!(reach.must_seal(), None);
        let fault = reach.resolve(&path("data/a")).err().unwrap();
        assert_eq!(fault.code, Code::Denied);
        assert!(fault.text.contains("encrypted only"), "{fault}");
        assert_eq!(reach.must_seal(), None, "and stays refused");
        assert!(reach.resolve(&path("data/a")).is_err());
        reach.resolve(&path("in/a")).unwrap();
    }
}
