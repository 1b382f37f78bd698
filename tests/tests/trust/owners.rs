//! What a client learns of the accounts of a server: the names of owners that occur in its
//! exports, and nothing of others. Needs root for files of several owners.

use crate::World;
use crate::process::skip;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::lchown;
use verbatim_control::{ClientKey, ConnectOptions};
use verbatim_proto::mirror::TreeScan;
use verbatim_proto::owners::{OWNERS_MAX, Owner, OwnerName};
use verbatim_proto::{ClientMessage, MirrorReply, MirrorRequest, ServerMessage, WirePath};
use verbatim_tests::raw::Raw;

const TOML: &str = r#"
[[export]]
path = "DIR/data"

[[export]]
path = "DIR/in"
mode = "rw"
owner = "client"
"#;

/// Numbers of accounts that any of these lists has.
const NUMBERS: u32 = 65_536;

/// Accounts of the lists of this machine, as `is_group`, number and name.
fn accounts() -> BTreeMap<(bool, u32), String> {
    let list = |path| fs::read_to_string(path).expect("a list");
    let mut accounts = BTreeMap::new();
    for (is_group, list) in [(false, list("/etc/passwd")), (true, list("/etc/group"))] {
        for line in list.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let number = fields.get(2).and_then(|number| number.parse().ok());
            if let Some(number) = number.filter(|number| *number < NUMBERS) {
                accounts.entry((is_group, number)).or_insert_with(|| fields[0].to_owned());
            }
        }
    }
    accounts
}

/// All numbers that are named to this client.
fn named(raw: &mut Raw) -> Vec<(bool, u32)> {
    let all = [false, true]
        .into_iter()
        .flat_map(|is_group| (0..NUMBERS).map(move |number| Owner { is_group, number }));
    let all: Vec<Owner> = all.collect();
    let mut named = Vec::new();
    for owners in all.chunks(OWNERS_MAX) {
        let ask = MirrorRequest::NamesOf { request: 1, owners: owners.to_vec() };
        raw.say(ClientMessage::Mirror(ask));
        let names = raw.hear("answer to NamesOf", |message| match message {
            ServerMessage::Mirror(MirrorReply::Names { names, .. }) => Some(names.clone()),
            _ => None,
        });
        assert_eq!(names.len(), owners.len());
        let found = owners.iter().zip(names).filter(|(_, name)| name.is_some());
        named.extend(found.map(|(owner, _)| (owner.is_group, owner.number)));
    }
    named
}

/// How many of these names have a number for this client.
fn numbered(raw: &mut Raw, accounts: &BTreeMap<(bool, u32), String>) -> usize {
    let name = |(&(is_group, _), name): (&(bool, u32), &String)| OwnerName {
        is_group,
        name: name.clone(),
    };
    let names: Vec<OwnerName> = accounts.iter().map(name).collect();
    let mut known = 0;
    for names in names.chunks(OWNERS_MAX) {
        let ask = MirrorRequest::NumbersOf { request: 1, names: names.to_vec() };
        raw.say(ClientMessage::Mirror(ask));
        let numbers = raw.hear("answer to NumbersOf", |message| match message {
            ServerMessage::Mirror(MirrorReply::Numbers { numbers, .. }) => Some(numbers.clone()),
            _ => None,
        });
        assert_eq!(numbers.len(), names.len());
        known += numbers.iter().flatten().count();
    }
    known
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("a path")
}

/// Has all of `data` listed, in one page.
fn walk(raw: &mut Raw) {
    let walk = TreeScan { path: path("data"), filter: Vec::new(), avoid: None, digests: false };
    raw.say(ClientMessage::Mirror(MirrorRequest::Walk { request: 7, walk }));
    raw.hear("page of a walk", |message| match message {
        ServerMessage::Mirror(MirrorReply::Walked { done: true, .. }) => Some(()),
        _ => None,
    });
}

/// How a token connects.
fn options(world: &World, token: &str) -> ConnectOptions {
    let key = Some(ClientKey::from_token(token).expect("a token"));
    ConnectOptions { key, ..world.options() }
}

#[test]
fn a_token_learns_the_names_of_owners_in_its_exports_and_of_no_others() {
    let name = "trust owners::a_token_learns_the_names_of_owners_in_its_exports_and_of_no_others";
    let accounts = accounts();
    let others = accounts.keys().filter(|(is_group, number)| !is_group && *number > 1);
    let all_there = accounts.contains_key(&(false, 1)) && others.count() > 0;
    if !rustix::process::geteuid().is_root() || !all_there {
        return skip(name, "it needs root, and a list with an account of number 1 and others");
    }
    let world = World::configured(TOML);
    let readers = world.add("reader", &["--export", "data:ro"]);
    let writers = world.add("writer", &["--export", "*:rw"]);
    lchown(world.path("data/small"), Some(1), Some(0)).expect("root may give away");

    let mut reader = Raw::connect(&options(&world, &readers));
    assert_eq!(named(&mut reader), [], "it was told of no entry");
    walk(&mut reader);
    let own = [(false, 0), (false, 1), (true, 0)];
    assert_eq!(named(&mut reader), own, "those that own its entries");
    assert_eq!(numbered(&mut reader, &accounts), 0, "it cannot give files away");

    // Who may give files to others has to know their numbers.
    let mut writer = Raw::connect(&options(&world, &writers));
    assert_eq!(numbered(&mut writer, &accounts), accounts.len());
    assert_eq!(named(&mut writer), []);
}
