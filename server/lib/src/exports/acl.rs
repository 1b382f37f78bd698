//! The access control list of one export: names of tokens, keys and certificates, addresses,
//! RDMA ports. Owns these rules, pure; `client_view` evaluates them for each client. An empty
//! rule admits every authenticated client.

use crate::config::cidr::CidrRange;
use std::collections::BTreeMap;
use std::net::IpAddr;
use verbatim_control::Who;

/// The access rules of one export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acl {
    /// Names of tokens and keys; empty admits all.
    pub tokens: Vec<String>,
    /// Names in certificates, and whether they may write; `*` is every certificate.
    pub certificates: BTreeMap<String, bool>,
    /// Addresses of clients; empty is all.
    pub addresses: Vec<CidrRange>,
    /// Addresses of clients' RDMA ports; empty is all.
    pub gids: Vec<CidrRange>,
    /// Whether it is left out of lists.
    pub hidden: bool,
    /// Whether its data moves inside TLS only.
    pub sealed: bool,
}

impl Acl {
    /// Whether this client may use the export from this address. A local client is the server's own
    /// user, who can read these files anyway.
    pub fn admits(&self, who: &Who, address: IpAddr) -> bool {
        let named = || match who {
            Who::Local => true,
            Who::Key(name, _) => self.tokens.contains(name),
            Who::Token(token) => self.tokens.contains(&token.name),
            Who::Certificate(named) => self.grant_to(&named.name).is_some(),
            Who::Anonymous => false,
        };
        let address_admitted = || self.addresses.iter().any(|range| range.contains(address));
        let open = self.tokens.is_empty() && self.certificates.is_empty();
        (open || named()) && (self.addresses.is_empty() || *who == Who::Local || address_admitted())
    }

    /// Whether the client of this certificate may write; `None` without a rule for it.
    pub fn grant_to(&self, name: &str) -> Option<bool> {
        self.certificates.get(name).or_else(|| self.certificates.get("*")).copied()
    }

    /// Whether data may be transferred to and from this RDMA port.
    pub fn admits_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.is_empty() || self.gids.iter().any(|range| range.contains_gid(gid))
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
        let open = Acl::default();
        assert!(open.admits(&Who::Anonymous, far) && open.admits(&key("eve"), far));
        let acl = Acl {
            tokens: vec!["alice".into()],
            addresses: vec!["10.0.0.0/8".parse().unwrap()],
            ..Acl::default()
        };
        assert!(acl.admits(&key("alice"), near));
        assert!(!acl.admits(&key("alice"), far) && !acl.admits(&key("eve"), near));
        assert!(!acl.admits(&Who::Anonymous, near) && acl.admits(&Who::Local, far));
    }

    #[test]
    fn ports_of_other_networks_are_kept_out() {
        let gid = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let acl = Acl { gids: vec!["10.0.0.0/8".parse().unwrap()], ..Acl::default() };
        assert!(acl.admits_gid(&gid("::ffff:10.1.2.3")) && !acl.admits_gid(&gid("fe80::1")));
        assert!(Acl::default().admits_gid(&gid("fe80::1")));
    }
}
