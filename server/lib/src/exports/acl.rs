//! The gate of one export: by which names, from which addresses and over which
//! RDMA ports it may be used. Owns these rules, pure; `client_view` asks them for each
//! client. Rules that are empty let everybody through who was let in at all.

use crate::config::cidr::Range;
use std::collections::BTreeMap;
use std::net::IpAddr;
use verbatim_control::Who;

/// Who may use an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gate {
    /// Names of tokens and keys; empty is everybody.
    pub tokens: Vec<String>,
    /// Names in certificates, and whether they may write; `*` is every certificate.
    pub certificates: BTreeMap<String, bool>,
    /// Addresses of clients; empty is all.
    pub addresses: Vec<Range>,
    /// Addresses of clients' RDMA ports; empty is all.
    pub gids: Vec<Range>,
    /// Whether it is left out of lists.
    pub hidden: bool,
    /// Whether its data moves inside TLS only.
    pub sealed: bool,
}

impl Gate {
    /// Whether somebody at this address may use it. The user of the server may: these files
    /// are that user's without us.
    pub fn admits(&self, who: &Who, address: IpAddr) -> bool {
        let named = || match who {
            Who::Local => true,
            Who::Key(name, _) => self.tokens.contains(name),
            Who::Token(token) => self.tokens.contains(&token.name),
            Who::Certificate(named) => self.grant_to(&named.name).is_some(),
            Who::Anonymous => false,
        };
        let near = || self.addresses.iter().any(|range| range.has(address));
        let open = self.tokens.is_empty() && self.certificates.is_empty();
        (open || named()) && (self.addresses.is_empty() || *who == Who::Local || near())
    }

    /// Whether whom this certificate names may write; none if nothing is said about it.
    pub fn grant_to(&self, name: &str) -> Option<bool> {
        self.certificates.get(name).or_else(|| self.certificates.get("*")).copied()
    }

    /// Whether data may move to and from this RDMA port.
    pub fn admits_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.is_empty() || self.gids.iter().any(|range| range.has_gid(gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_control::ClientKey;

    #[test]
    fn names_and_addresses_must_both_fit() {
        let key = |name: &str| Who::Key(name.into(), ClientKey::generate().unwrap().public());
        let (near, far) = ("10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let open = Gate::default();
        assert!(open.admits(&Who::Anonymous, far) && open.admits(&key("eve"), far));
        let gate = Gate {
            tokens: vec!["alice".into()],
            addresses: vec!["10.0.0.0/8".parse().unwrap()],
            ..Gate::default()
        };
        assert!(gate.admits(&key("alice"), near));
        assert!(!gate.admits(&key("alice"), far) && !gate.admits(&key("eve"), near));
        assert!(!gate.admits(&Who::Anonymous, near) && gate.admits(&Who::Local, far));
    }

    #[test]
    fn ports_of_other_networks_are_kept_out() {
        let gid = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let gate = Gate { gids: vec!["10.0.0.0/8".parse().unwrap()], ..Gate::default() };
        assert!(gate.admits_gid(&gid("::ffff:10.1.2.3")) && !gate.admits_gid(&gid("fe80::1")));
        assert!(Gate::default().admits_gid(&gid("fe80::1")));
    }
}
