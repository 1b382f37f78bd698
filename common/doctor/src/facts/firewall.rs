//! Whether a firewall drops what it has no rule for, and which of our ports no rule
//! of it names. Rules are looked for by their numbers, not understood: one that
//! names a port is taken to let it in. Of rules that may not be read nothing is said.

use crate::tree::Tree;

/// A firewall that drops what it does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Firewall {
    pub tool: Tool,
    /// Which of our ports it does not mention.
    pub closed: Vec<Door>,
}

/// What a firewall is managed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Nft {
        /// Family, table and name of what drops: `inet filter input`.
        chain: String,
    },
    Iptables,
    Ufw,
    Firewalld,
}

impl Tool {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nft { .. } => "nft",
            Self::Iptables => "iptables",
            Self::Ufw => "ufw",
            Self::Firewalld => "firewalld",
        }
    }
}

/// A protocol and a port of it.
pub(crate) type Door = (&'static str, &'static str);

/// The server's control port.
pub(crate) const CONTROL: Door = ("tcp", "20490");

/// RoCE v2.
pub(crate) const ROCE: Door = ("udp", "4791");

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
        (Tool::Ufw, tree.text("etc/ufw/user.rules").unwrap_or_default())
    } else if FIREWALLD.iter().any(|sign| tree.has(sign)) {
        let zones = "etc/firewalld/zones";
        let texts = tree.names(zones);
        let texts = texts.iter().filter_map(|name| tree.text(&format!("{zones}/{name}")));
        (Tool::Firewalld, texts.collect::<Vec<_>>().join("\n"))
    } else {
        let nft = tree.output("nft", &["-s", "list", "ruleset"]);
        let nft = nft.and_then(|rules| Some((Tool::Nft { chain: nft_chain(&rules)? }, rules)));
        let old = || tree.output("iptables", &["-S", "INPUT"]).filter(|it| iptables_drops(it));
        nft.or_else(|| old().map(|rules| (Tool::Iptables, rules)))?
    };
    let names = |port: &str| {
        rules.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == port)
    };
    let closed = [CONTROL, ROCE].into_iter().filter(|(_, port)| !names(port)).collect();
    Some(Firewall { tool, closed })
}

/// The first chain on the way in that drops what it does not know.
fn nft_chain(rules: &str) -> Option<String> {
    let (mut table, mut chain) = ("", "");
    for line in rules.lines().map(str::trim) {
        // "table ip filter {"
        let named = |word: &str| Some(line.strip_prefix(word)?.split('{').next()?.trim());
        if let Some(name) = named("table ") {
            table = name;
        } else if let Some(name) = named("chain ") {
            chain = name;
        } else if line.contains("hook input") && line.contains("policy drop") {
            return Some(format!("{table} {chain}"));
        }
    }
    None
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
        let nft = |rules: &str| nft_chain(rules).is_some();
        assert!(!nft("type filter hook input priority filter; policy accept;"));
        assert!(!nft("type filter hook forward priority filter; policy drop;"));
        assert!(!iptables_drops("-P INPUT ACCEPT\n-A INPUT -s 10.0.0.1/32 -j DROP"));
        assert!(iptables_drops("-P INPUT ACCEPT\n-A INPUT -j REJECT --reject-with icmp-x"));
    }

    #[test]
    fn the_chain_that_drops_is_named_as_nft_wants_it() {
        let rules = "table ip6 filter {\n\tchain INPUT {\n\t\ttype filter hook input priority \
                     filter; policy accept;\n\t}\n}\ntable ip filter { # progname it\n\tchain \
                     DOCKER {\n\t}\n\tchain INPUT {\n\t\ttype filter hook input priority \
                     filter; policy drop;\n\t}\n}";
        assert_eq!(nft_chain(rules).as_deref(), Some("ip filter INPUT"));
    }
}
