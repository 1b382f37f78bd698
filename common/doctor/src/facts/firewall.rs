//! Whether a firewall drops what it has no rule for, and which of our ports no rule
//! of it names. Rules are looked for by their numbers, not understood: one that
//! names a port is taken to let it in. Of rules that may not be read nothing is said.

use crate::tree::Tree;

/// A firewall that drops what it does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Firewall {
    /// What it is managed by: `nft`, `iptables`, `ufw`, `firewalld`.
    pub tool: &'static str,
    /// Which of our ports it does not mention.
    pub closed: Vec<&'static str>,
}

/// What must be let in: the control port, and RoCE v2.
const OPEN: &[(&str, &str)] = &[("20490", "tcp 20490"), ("4791", "udp 4791")];

/// What is there while firewalld runs: the control group of its service, or its own file where
/// something else started it. Its folder in /run stays when it ends.
const FIREWALLD: &[&str] = &[
    "sys/fs/cgroup/system.slice/firewalld.service",
    "sys/fs/cgroup/systemd/system.slice/firewalld.service",
    "run/firewalld.pid",
];

pub(super) fn read(tree: &Tree) -> Option<Firewall> {
    let before = tree.refusals();
    let firewall = found(tree);
    firewall.filter(|_| tree.refusals() == before)
}

fn found(tree: &Tree) -> Option<Firewall> {
    let ufw = tree.text("etc/ufw/ufw.conf").is_some_and(|text| text.contains("ENABLED=yes"));
    let (tool, rules) = if ufw {
        ("ufw", tree.text("etc/ufw/user.rules").unwrap_or_default())
    } else if FIREWALLD.iter().any(|sign| tree.has(sign)) {
        let zones = "etc/firewalld/zones";
        let texts = tree.names(zones);
        let texts = texts.iter().filter_map(|name| tree.text(&format!("{zones}/{name}")));
        ("firewalld", texts.collect::<Vec<_>>().join("\n"))
    } else {
        let nft = tree.output("nft", &["-s", "list", "ruleset"]).filter(|it| nft_drops(it));
        let old = || tree.output("iptables", &["-S", "INPUT"]).filter(|it| iptables_drops(it));
        let nft = nft.map(|rules| ("nft", rules));
        nft.or_else(|| old().map(|rules| ("iptables", rules)))?
    };
    let names = |port: &str| {
        rules.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == port)
    };
    let closed = OPEN.iter().filter(|(port, _)| !names(port)).map(|(_, name)| *name).collect();
    Some(Firewall { tool, closed })
}

/// A chain on the way in that drops what it does not know.
fn nft_drops(rules: &str) -> bool {
    rules.lines().any(|line| line.contains("hook input") && line.contains("policy drop"))
}

/// The same by its policy, or by a last rule that takes everything.
fn iptables_drops(rules: &str) -> bool {
    let ends = ["-P INPUT DROP", "-A INPUT -j DROP", "-A INPUT -j REJECT"];
    rules.lines().any(|line| ends.iter().any(|end| line.trim().starts_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_that_lets_everything_in_is_none() {
        assert!(!nft_drops("type filter hook input priority filter; policy accept;"));
        assert!(!nft_drops("type filter hook forward priority filter; policy drop;"));
        assert!(!iptables_drops("-P INPUT ACCEPT\n-A INPUT -s 10.0.0.1/32 -j DROP"));
        assert!(iptables_drops("-P INPUT ACCEPT\n-A INPUT -j REJECT --reject-with icmp-x"));
    }
}
