//! Certificates of the user's own authority on both sides, instead of fingerprints
//! and tokens: the right ones, those of another authority, those that are over, and
//! those of another name.

use crate::process::{Ended, Running, wait_for, when};
use crate::{FOLLOW_MAX, World, names};
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use verbatim_tests::holding::Holding;

const TOML: &str = r#"
[tls]
cert = "DIR/server.pem"
key = "DIR/server.key"
client_ca = "DIR/ca.pem"

[[export]]
path = "DIR/data"

[[export]]
path = "DIR/in"
mode = "rw"
certificates = ["alice.example", "bob.example:ro"]
"#;

/// An authority that makes certificates.
pub(crate) struct Maker(Issuer<'static, KeyPair>);

impl Maker {
    /// Makes one and keeps its own certificate.
    pub fn new(path: &Path) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = path.file_stem().and_then(|name| name.to_str()).expect("plain");
        params.distinguished_name.push(DnType::CommonName, name);
        write_pem(path, "CERTIFICATE", params.self_signed(&key).expect("signs itself").der());
        Self(Issuer::new(params, key))
    }

    /// Makes a certificate for a name, and writes it and its key; without a time, a long one.
    pub fn make(&self, dir: &Path, file: &str, name: &str, ends_in: Option<i64>) {
        self.sign(dir, file, params_of(name, None, ends_in));
    }

    /// Signs a certificate, and writes it and its key; who has these may sign others.
    fn sign(&self, dir: &Path, file: &str, params: CertificateParams) -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signs");
        write_pem(&dir.join(format!("{file}.pem")), "CERTIFICATE", certificate.der());
        write_pem(&dir.join(format!("{file}.key")), "PRIVATE KEY", &key.serialize_der());
        Self(Issuer::new(params, key))
    }
}

/// What a certificate for a name says of itself, and of when it counts, in seconds from now.
fn params_of(name: &str, begins_in: Option<i64>, ends_in: Option<i64>) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let at = |seconds: i64| {
        date_time_ymd(1970, 1, 1)
            + Duration::from_secs(now.as_secs().saturating_add_signed(seconds))
    };
    params.not_before = begins_in.map_or(params.not_before, at);
    params.not_after = ends_in.map_or(params.not_after, at);
    params
}

/// The same of an authority.
fn authority_of(name: &str, ends_in: Option<i64>) -> CertificateParams {
    let mut params = params_of(name, None, ends_in);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Appends a certificate to the file of another, so that both are shown.
fn append(dir: &Path, file: &str, other: &str) {
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).expect("a file");
    let both = text(file) + &text(other);
    std::fs::write(dir.join(file), both).expect("our own file");
}

fn write_pem(path: &Path, kind: &str, der: &[u8]) {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|it| str::from_utf8(it).expect("base64")).collect();
    let pem = format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"));
    std::fs::write(path, pem).expect("a file");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("our own file");
}

/// A server with a certificate for 127.0.0.1, and its authority.
fn world() -> (World, Maker) {
    world_until(None)
}

/// The same, with a certificate that ends in so many seconds.
fn world_until(ends_in: Option<i64>) -> (World, Maker) {
    let mut maker = None;
    let world = World::prepared(TOML, |dir| {
        let authority = Maker::new(&dir.join("ca.pem"));
        authority.make(dir, "server", "127.0.0.1", ends_in);
        maker = Some(authority);
    });
    (world, maker.expect("it was made"))
}

/// What a client with these files is given.
fn shown(world: &World, ca: &str, who: &str) -> Vec<String> {
    let [cert, key] = ["pem", "key"].map(|kind| world.text(&format!("{who}.{kind}")));
    let flags = ["--ca", &world.text(ca), "--cert", &cert, "--key", &key];
    flags.map(str::to_owned).to_vec()
}

/// Runs `rdma-cp` of a user who has these files and nothing else.
fn cp(world: &World, ca: &str, who: &str, arguments: &[&str]) -> Ended {
    let mut all = shown(world, ca, who);
    all.extend(arguments.iter().map(|&it| it.to_owned()));
    crate::process::Home::new().cp(&all)
}

#[test]
fn a_certificate_is_good_for_what_exports_say_of_its_name() {
    let (world, maker) = world();
    for who in ["alice", "bob", "eve"] {
        maker.make(world.dir.path(), who, &format!("{who}.example"), None);
    }
    let (data, out) = (world.serve.at("data/large"), world.text("out"));
    for who in ["alice", "eve"] {
        cp(&world, "ca.pem", who, &[&data, &out, "-f"]).done();
    }
    let (small, into) = (world.text("data/small"), world.serve.at("in/"));
    cp(&world, "ca.pem", "alice", &[&small, &into]).done();
    assert_eq!(names(&world.path("in")), ["small"]);
    cp(&world, "ca.pem", "bob", &[&small, &world.serve.at("in/b")]).refused(1, &["read-only"]);
    cp(&world, "ca.pem", "bob", &[&world.serve.at("in/small"), &out, "-f"]).done();
    cp(&world, "ca.pem", "eve", &[&small, &into]).refused(1, &["no export is called in"]);
    world.serve.logged("cert:alice.example", 1);
    // Set for the server instead of given.
    let home = crate::process::Home::new();
    let config = home.path().join("config/verbatim");
    std::fs::create_dir_all(&config).unwrap();
    let set = ["ca.pem", "alice.pem", "alice.key"].map(|file| world.text(file));
    let toml = format!(
        "[server.\"127.0.0.1\"]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
        set[0], set[1], set[2]
    );
    std::fs::write(config.join("client.toml"), toml).unwrap();
    home.cp(&[&data, &out, "-f"]).done();
}

#[test]
fn a_certificate_that_does_not_do_is_refused_with_the_reason() {
    let (world, maker) = world();
    let dir = world.dir.path();
    let other = Maker::new(&dir.join("other.pem"));
    maker.make(dir, "alice", "alice.example", None);
    maker.make(dir, "late", "late.example", Some(-60));
    other.make(dir, "stranger", "alice.example", None);
    let list = world.serve.at("");
    let refused = |ca: &str, who: &str, why: &str| {
        cp(&world, ca, who, &["--list", &list]).refused(3, &[why]);
    };
    refused("ca.pem", "stranger", "certificate: it is of another authority");
    refused("ca.pem", "late", "certificate: it has expired");
    refused("other.pem", "alice", "its certificate does not do: it is of another authority");
    // By a name that is not in the server's certificate.
    let named = list.replace("127.0.0.1", "localhost");
    let ended = cp(&world, "ca.pem", "alice", &["--list", &named]);
    ended.refused(3, &["its certificate does not do: it is for another name", "hint: check --ca"]);
    // By what no certificate can have: the system takes it for an address.
    let named = list.replace("127.0.0.1", "127.1");
    let ended = cp(&world, "ca.pem", "alice", &["--list", &named]);
    ended.refused(3, &["its certificate does not do: no certificate can be for 127.1"]);
    // Nothing is shown, and there is no token.
    let nobody = crate::process::Home::new();
    nobody
        .cp(&["--ca", &world.text("ca.pem"), "--list", &list])
        .refused(3, &["no key was offered"]);
    // A key that others can read.
    let key = world.path("alice.key");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    cp(&world, "ca.pem", "alice", &["--list", &list]).refused(3, &["alice.key"]);
}

#[test]
fn a_certificate_that_ends_takes_its_session_with_it() {
    let (world, maker) = world();
    let before = Holding::of(world.serve.id());
    maker.make(world.dir.path(), "brief", "brief.example", Some(8));
    let (from, out) = (world.serve.at("data/large"), world.text("out"));
    let ended = cp(&world, "ca.pem", "brief", &["--bwlimit", "256K", &from, &out]);
    ended.refused(3, &["the certificate of brief.example has expired"]);
    assert!(!world.path("out/large").exists(), "half a file has no final name");
    // Who gets another one is let in again.
    maker.make(world.dir.path(), "brief", "brief.example", None);
    cp(&world, "ca.pem", "brief", &[&from, &out]).done();
    assert_eq!(bytes(&world, "out/large"), bytes(&world, "data/large"));
    before.comes_back(&world.serve);
}

#[test]
fn a_certificate_of_the_server_that_ends_keeps_others_out_and_loses_nothing() {
    let (world, maker) = world_until(Some(8));
    let before = Holding::of(world.serve.id());
    maker.make(world.dir.path(), "alice", "alice.example", None);
    let (from, out, list) = (world.serve.at("data/large"), world.text("out"), world.serve.at(""));
    let mut all = shown(&world, "ca.pem", "alice");
    all.extend(["--bwlimit", "512K", &from, &out].map(str::to_owned));
    let home = crate::process::Home::new();
    let mut copy = Running::start(home.command("rdma-cp", &all));
    world.wait_until_begun(&mut copy);
    let what = "rdma-cp does not trust the server any more: its certificate has expired";
    let refused = wait_for(what, FOLLOW_MAX, || {
        when(cp(&world, "ca.pem", "alice", &["--list", &list]), |ended| ended.code != Some(0))
    });
    refused.refused(3, &["its certificate does not do: it has expired"]);
    // Who was let in knew the server: its session goes on to its end.
    copy.assert_runs("the copy was too short to show anything");
    copy.end().done();
    assert_eq!(names(&world.path("out")), ["large"]);
    assert_eq!(bytes(&world, "out/large"), bytes(&world, "data/large"));
    before.comes_back(&world.serve);
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_refused_by_both_ends() {
    let (world, maker) = world();
    let dir = world.dir.path();
    maker.sign(dir, "early", params_of("alice.example", Some(3600), None));
    maker.make(dir, "alice", "alice.example", None);
    let list = world.serve.at("");
    let ended = cp(&world, "ca.pem", "early", &["--list", &list]);
    ended.refused(3, &["certificate: it has expired, or is not valid yet"]);

    let mut maker = None;
    let world = World::prepared(TOML, |dir| {
        let authority = Maker::new(&dir.join("ca.pem"));
        authority.sign(dir, "server", params_of("127.0.0.1", Some(3600), None));
        authority.make(dir, "alice", "alice.example", None);
        maker = Some(authority);
    });
    let ended = cp(&world, "ca.pem", "alice", &["--list", &world.serve.at("")]);
    ended.refused(3, &["its certificate does not do: it is not valid yet"]);
}

#[test]
fn a_chain_counts_only_through_authorities_that_may_sign_and_have_not_expired() {
    let (world, maker) = world();
    let dir = world.dir.path();
    // Signed by an authority below: good, over, and one that is none.
    let good = maker.sign(dir, "good", authority_of("good.example", None));
    let over = maker.sign(dir, "over", authority_of("over.example", Some(-60)));
    let bob = params_of("bob.example", None, None);
    let mut named = bob.clone();
    named.distinguished_name.push(DnType::CommonName, "bob.example");
    let no_authority = maker.sign(dir, "bob", named);
    let list = world.serve.at("");
    for (who, signer) in [("good", &good), ("over", &over), ("bob", &no_authority)] {
        let file = format!("by-{who}");
        signer.make(dir, &file, "alice.example", None);
        append(dir, &format!("{file}.pem"), &format!("{who}.pem"));
    }
    let (small, into) = (world.text("data/small"), world.serve.at("in/"));
    cp(&world, "ca.pem", "by-good", &[&small, &into]).done();
    // Without what vouches for its signer.
    good.make(dir, "alone", "alice.example", None);
    let refused = |who: &str, why: &str| {
        cp(&world, "ca.pem", who, &["--list", &list]).refused(3, &[why]);
    };
    refused("alone", "certificate: it is of another authority");
    refused("by-over", "certificate: it has expired");
    refused("by-bob", "certificate: ");
    // An authority that comes itself, with a name that an export lets in.
    maker.sign(dir, "proud", authority_of("alice.example", None));
    refused("proud", "certificate: ");
    assert_eq!(names(&world.path("in")), ["small"]);
}

fn bytes(world: &World, below: &str) -> Vec<u8> {
    std::fs::read(world.path(below)).expect("a file")
}
