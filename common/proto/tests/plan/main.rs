//! Plans, on trees that are made up: whatever two trees and options there are, a
//! plan that is done makes the target equal to the source, and the next plan is
//! empty. Also what a plan must never do.

#![forbid(unsafe_code)]

mod model;

use model::{Inode, Thing, Tree};
use proptest::prelude::*;
use std::cmp::Ordering;
use verbatim_proto::meta::Xattr;
use verbatim_proto::plan::{Diff, Next, Options, Side, Step, What};
use verbatim_proto::tree::{Found, path_of};
use verbatim_proto::{Code, Fault, Habits, Lacks, Meta, Resolution, WirePath};

/// A plan, from streams that come in pages of any length.
fn plan(source: &[Found], target: &[Found], options: Options, page: usize) -> (Vec<Step>, Diff) {
    let mut diff = Diff::new(options);
    let mut left = [source.chunks(page), target.chunks(page)];
    let mut steps = Vec::new();
    loop {
        match diff.next_step().expect("the streams are sorted") {
            Next::Step(step) => steps.push(step),
            Next::End => return (steps, diff),
            Next::Need { source, target } => {
                assert!(source || target);
                for (needed, side, at) in [(source, Side::Source, 0), (target, Side::Target, 1)] {
                    if needed {
                        let page = left[at].next().unwrap_or_default().to_vec();
                        let done = left[at].len() == 0;
                        diff.push(side, page, done).expect("the streams are sorted");
                    }
                }
            }
        }
    }
}

/// The same, where what both trees have alike comes for both at once, runs of it in one.
fn plan_alike(source: &[Found], target: &[Found], options: Options) -> (Vec<Step>, Diff, usize) {
    let mut diff = Diff::new(options);
    let (mut source, mut target) = (source.iter().peekable(), target.iter().peekable());
    let mut runs = 0;
    loop {
        let (mut apart, mut alike) = ([Vec::new(), Vec::new()], Vec::new());
        while let (Some(one), Some(other)) = (source.peek(), target.peek()) {
            match path_of(one).tree_cmp(path_of(other)) {
                Ordering::Equal if one == other => break,
                order => {
                    apart[0].extend(source.next_if(|_| order.is_le()).cloned());
                    apart[1].extend(target.next_if(|_| order.is_ge()).cloned());
                }
            }
        }
        while let (Some(one), Some(other)) = (source.peek(), target.peek())
            && one == other
        {
            alike.extend(source.next().cloned());
            target.next();
        }
        let ends = source.peek().is_none() || target.peek().is_none();
        let [of_source, of_target] = apart;
        diff.push(Side::Source, of_source, false).expect("sorted");
        diff.push(Side::Target, of_target, false).expect("sorted");
        runs += usize::from(!alike.is_empty());
        diff.push_alike(alike, [false; 2]).expect("sorted");
        if ends {
            break;
        }
    }
    diff.push(Side::Source, source.cloned().collect(), true).expect("sorted");
    diff.push(Side::Target, target.cloned().collect(), true).expect("sorted");
    let mut steps = Vec::new();
    while let Next::Step(step) = diff.next_step().expect("the streams are sorted") {
        steps.push(step);
    }
    (steps, diff, runs)
}

fn path(text: &str) -> WirePath {
    WirePath::parse(text.as_bytes()).expect("plain")
}

fn meta() -> impl Strategy<Value = Meta> {
    (0..2u32, 0..2u32, 0..3i64).prop_map(|(mode, uid, mtime_ns)| Meta {
        mode: 0o600 + 0o100 * mode,
        uid,
        mtime_ns,
        ..Meta::default()
    })
}

/// A tree of a few names, so that two of them have much in common. Where contents are not
/// compared they follow from size and time, as that is what is looked at.
fn tree(checksum: bool) -> impl Strategy<Value = Tree> {
    let name = || (0..4usize).prop_map(|at| ["a", "b", "a b", "B"][at]);
    let place = prop::collection::vec(name(), 1..4).prop_map(|names| path(&names.join("/")));
    let thing = (0..12u8, meta(), 0..3u8, 0..2u64, 0..4u64);
    let things = prop::collection::vec((place, thing), 0..24);
    (meta(), things).prop_map(move |(root, things)| {
        let mut tree = Tree { next: 100, ..Tree::default() };
        tree.things.insert(WirePath::root(), Thing::Folder(root));
        for (path, (kind, meta, content, size, twin)) in things {
            add(&mut tree, path, kind, meta, (content, size, twin), checksum);
        }
        tree
    })
}

/// The first inode of links that may have several names.
const LINKS: u64 = 50;

fn add(
    tree: &mut Tree,
    path: WirePath,
    kind: u8,
    meta: Meta,
    (content, size, twin): (u8, u64, u64),
    checksum: bool,
) {
    let above = std::iter::successors(Some(path.parent()), |at| Some(at.parent()));
    let above: Vec<WirePath> = above.take_while(|at| !at.is_root()).collect();
    let is_folder = |at: &WirePath| matches!(tree.things.get(at), None | Some(Thing::Folder(_)));
    if !above.iter().all(is_folder) || tree.things.contains_key(&path) {
        return;
    }
    for at in above {
        tree.things.entry(at).or_insert_with(|| Thing::Folder(meta.clone()));
    }
    let content = if checksum { content } else { (size * 3 + meta.mtime_ns as u64) as u8 };
    let thing = match kind {
        0..=1 => Thing::Folder(meta),
        // A link of several names, perhaps; no file has the inode of a link.
        2..=3 => {
            tree.next += 1;
            let inode = if kind == 2 { LINKS + twin } else { tree.next };
            let link = (vec![b'x' + content % 2], Meta { mode: 0, ..meta });
            tree.links.entry(inode).or_insert(link);
            Thing::Link(inode)
        }
        4 => Thing::Special,
        // A file of several names, perhaps.
        5..=7 => {
            tree.inodes.entry(twin).or_insert(Inode { content, size, meta });
            Thing::File(twin)
        }
        _ => {
            tree.next += 1;
            tree.inodes.insert(tree.next, Inode { content, size, meta });
            Thing::File(tree.next)
        }
    };
    tree.things.insert(path, thing);
}

/// Paths of the source that no plan can do: special files, and what is refused.
fn excused(steps: &[Step], path: &WirePath) -> bool {
    steps.iter().any(|step| match &step.what {
        What::Skip { path: left } | What::Refuse { path: left, .. } => {
            path == left || path.is_below(left)
        }
        _ => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_plan_that_is_done_makes_the_target_equal_and_the_next_one_is_empty(
        (checksum, source, target) in any::<bool>()
            .prop_flat_map(|checksum| (Just(checksum), tree(checksum), tree(checksum))),
        delete in any::<bool>(),
        page in 1..9usize,
    ) {
        let options = Options { delete, checksum, ..Options::default() };
        let (steps, diff) = plan(&source.found(1), &target.found(2), options, page);
        let mut result = target.clone();
        result.apply(&source, &steps);
        for path in source.things.keys().filter(|path| !excused(&steps, path)) {
            let (wanted, is) = (source.shown(path), result.shown(path));
            let (wanted, is) = (wanted.expect("it is there"), is);
            prop_assert_eq!(Some(&wanted.0), is.as_ref().map(|(text, _)| text), "{}", path);
        }
        prop_assert!(same_names(&source, &result, &steps), "{:?}", result);
        for (path, thing) in &result.things {
            let extra = !source.things.contains_key(path);
            prop_assert!(!extra || !delete || excused(&steps, path), "{} is left", path);
            prop_assert!(!extra || target.things.get(path) == Some(thing), "{} was changed", path);
        }
        let deletes = steps.iter().filter(|step| matches!(&step.what, What::Delete { .. })).count();
        prop_assert_eq!(diff.counts().deletes, deletes as u64);
        let (again, _) = plan(&source.found(1), &result.found(2), options, page);
        let left: Vec<_> = again.iter().filter(|step| step.what.is_change()).collect();
        prop_assert!(left.is_empty(), "{left:#?}");
    }

    #[test]
    fn what_is_alike_makes_the_same_plan_when_it_comes_at_once(
        source in tree(false), target in tree(false), delete in any::<bool>(), fold in any::<bool>(),
    ) {
        let options = Options { delete, fold_case: fold, ..Options::default() };
        // Also files of several names may be alike: they are numbered as it comes.
        let (source, target) = (source.found(1), target.found(1));
        let (steps, diff) = plan(&source, &target, options, 7);
        let (at_once, other, _) = plan_alike(&source, &target, options);
        prop_assert_eq!(steps, at_once);
        prop_assert_eq!(diff.counts(), other.counts());
        let (nothing, diff, runs) = plan_alike(&source, &source, options);
        prop_assert_eq!((runs, diff.counts().source), (1, source.len() as u64 - 1));
        prop_assert_eq!(diff.counts().target, diff.counts().source);
        prop_assert_eq!(nothing, plan(&source, &source, options, 7).0);
    }

    #[test]
    fn a_file_that_cannot_be_copied_leaves_every_name_right_or_as_it_was(
        source in tree(true), target in tree(true), delete in any::<bool>(), at in 0..30usize,
    ) {
        let options = Options { delete, checksum: true, ..Options::default() };
        let (steps, _) = plan(&source.found(1), &target.found(2), options, 4);
        let copied = |step: &Step| match &step.what {
            What::Fetch { node, .. } => Some(node.path.clone()),
            _ => None,
        };
        let copies: Vec<WirePath> = steps.iter().filter_map(copied).collect();
        let Some(failing) = copies.get(at % copies.len().max(1)) else { return Ok(()) };
        let mut result = target.clone();
        result.apply_but(&source, &steps, std::slice::from_ref(failing));
        let content = |tree: &Tree, path: &WirePath| match tree.things.get(path) {
            Some(Thing::File(inode)) => Some(tree.inodes[inode].content),
            _ => None,
        };
        for path in target.things.keys() {
            prop_assert!(result.things.contains_key(path), "{} is gone", path);
        }
        for path in result.things.keys() {
            let is = content(&result, path);
            let right = is == content(&source, path) || is == content(&target, path);
            prop_assert!(right, "{}: {:?}", path, is);
        }
        prop_assert_eq!(content(&result, failing), content(&target, failing));
    }

    #[test]
    fn what_cannot_be_read_in_the_source_is_neither_deleted_nor_touched(
        source in tree(false), target in tree(false), at in 0..30usize,
    ) {
        let mut found = source.found(1);
        if found.len() < 2 {
            return Ok(());
        }
        let at = 1 + at % (found.len() - 1);
        let path = found[at].as_ref().expect("an entry").path.clone();
        found.retain(|found| !found.as_ref().is_ok_and(|node| node.path.is_below(&path)));
        found[at] = Err((path.clone(), Fault::new(Code::Denied, "no")));
        let options = Options { delete: true, ..Options::default() };
        let (steps, diff) = plan(&found, &target.found(2), options, 3);
        prop_assert_eq!(diff.counts().faults, 1);
        for step in steps.iter().filter(|step| step.what.is_change()) {
            let touched = step.what.path();
            prop_assert!(*touched != path && !touched.is_below(&path), "{step:?}");
        }
    }
}

/// Whether two names are one file in the result exactly where they are in the source.
fn same_names(source: &Tree, result: &Tree, steps: &[Step]) -> bool {
    let files: Vec<_> = source
        .things
        .iter()
        .filter(|(_, thing)| matches!(thing, Thing::File(_) | Thing::Link(_)))
        .filter(|(path, _)| !excused(steps, path))
        .collect();
    files.iter().all(|(a, thing_a)| {
        files.iter().all(|(b, thing_b)| {
            (thing_a == thing_b) == (result.things.get(*a) == result.things.get(*b))
        })
    })
}

fn small(names: &[&str]) -> Tree {
    let mut tree = Tree::default();
    tree.things.insert(WirePath::root(), Thing::Folder(Meta::default()));
    for name in names {
        add(&mut tree, path(name), 9, Meta::default(), (0, 1, 0), false);
    }
    tree
}

#[test]
fn names_that_differ_in_case_are_one_where_the_target_says_so() {
    let options = Options { delete: true, fold_case: true, ..Options::default() };
    let source = small(&["A/x", "a/y", "b"]);
    let (steps, _) = plan(&source.found(1), &small(&["B", "old"]).found(2), options, 2);
    let refused: Vec<_> = steps
        .iter()
        .filter(|step| matches!(step.what, What::Refuse { .. }))
        .map(|step| step.what.path().to_string())
        .collect();
    assert_eq!(refused, ["a"]);
    let deletes = steps.iter().any(|step| matches!(step.what, What::Delete { .. }));
    assert!(!deletes, "a name in another case may be a file of the source: {steps:?}");
}

#[test]
fn what_only_a_tree_beside_the_target_has_is_deleted_or_reverted() {
    let (source, target) = (small(&["a"]).found(1), small(&["a", "b/c"]).found(2));
    let whats = |options: Options| {
        let steps = plan(&source, &target, options, 2).0;
        steps.into_iter().map(|step| step.what).collect::<Vec<_>>()
    };
    let revert = |name: &str| What::Revert { path: path(name) };
    let apart = Options { apart: true, ..Options::default() };
    assert_eq!(whats(apart), [revert("b"), revert("b/c")]);
    assert_eq!(whats(Options { fold_case: true, ..apart }), [], "it may be a name of the source");
    assert_eq!(whats(Options::default()), [], "of a target itself it stays");
    let deleted = whats(Options { delete: true, ..apart });
    assert!(deleted.iter().all(|what| !matches!(what, What::Revert { .. })), "{deleted:?}");
}

#[test]
fn files_of_their_own_do_not_stay_names_of_one_file() {
    let source = small(&["a", "b", "c"]);
    let mut target = source.clone();
    let one = target.things[&path("a")].clone();
    target.things.insert(path("b"), one);
    let (steps, _) = plan(&source.found(1), &target.found(2), Options::default(), 2);
    target.apply(&source, &steps);
    assert_ne!(target.things[&path("a")], target.things[&path("b")], "{steps:#?}");
    let (again, _) = plan(&source.found(1), &target.found(2), Options::default(), 2);
    assert!(again.is_empty(), "{again:#?}");
}

#[test]
fn a_file_whose_names_are_alike_is_not_kept_for_another() {
    let mut source = small(&["a", "b", "c"]);
    let one = source.things[&path("a")].clone();
    source.things.insert(path("b"), one.clone());
    let mut target = source.clone();
    target.things.insert(path("c"), one);
    let (source, target) = (source.found(1), target.found(1));
    let (steps, ..) = plan_alike(&source, &target, Options::default());
    assert!(steps.iter().any(|step| *step.what.path() == path("c")), "{steps:#?}");
}

/// A folder with a folder, a file and a link in it, all of one time.
fn of_time(mtime_ns: i64) -> Tree {
    let meta = Meta { mode: 0o700, mtime_ns, ..Meta::default() };
    let mut tree = Tree::default();
    tree.things.insert(WirePath::root(), Thing::Folder(meta.clone()));
    for (name, kind) in [("file", 9), ("folder", 0), ("link", 2)] {
        add(&mut tree, path(name), kind, meta.clone(), (0, 1, 0), true);
    }
    tree
}

#[test]
fn what_a_target_cannot_keep_of_a_time_is_no_difference() {
    let time_ns = 1_234_567_891_987_654_321;
    let source = of_time(time_ns).found(1);
    for resolution in Resolution::ALL {
        for checksum in [false, true] {
            let habits = Habits { resolution, ..Habits::default() };
            let options = Options { checksum, habits, ..Options::default() };
            let steps = |target_ns| plan(&source, &of_time(target_ns).found(2), options, 2).0;
            let kept_ns = resolution.cut(time_ns);
            assert_eq!(steps(kept_ns), [], "{resolution:?}");
            assert_eq!(steps(time_ns), [], "{resolution:?}: what is mounted there keeps more");
            for other_ns in [kept_ns - 1, time_ns + 1, time_ns + 2_000_000_000] {
                let steps = steps(other_ns);
                assert!(steps.iter().all(|step| step.why.time), "{resolution:?}: {steps:#?}");
                assert_eq!(steps.len(), 4, "{resolution:?}: {steps:#?}");
            }
            if resolution != Resolution::Nanosecond {
                let exact = Options { checksum, ..Options::default() };
                let (steps, _) = plan(&source, &of_time(kept_ns).found(2), exact, 2);
                assert_eq!(steps.len(), 4, "of a target that could keep it: {steps:#?}");
            }
        }
    }
}

#[test]
fn attributes_that_a_target_does_not_have_are_no_difference() {
    let names = ["user.a", "system.posix_acl_access", "security.a", "trusted.a"];
    let with = |mode, names: &[&str]| {
        let xattr = |name: &&str| Xattr { name: name.as_bytes().to_vec(), value: vec![1] };
        let meta = Meta { mode, xattrs: names.iter().map(xattr).collect(), ..Meta::default() };
        let mut tree = small(&[]);
        add(&mut tree, path("file"), 9, meta, (0, 1, 0), true);
        tree.found(1)
    };
    let steps = |lacks, target: &[Found]| {
        let options =
            Options { habits: Habits { lacks, ..Habits::default() }, ..Options::default() };
        let steps = plan(&with(0o674, &names), target, options, 2).0;
        steps.iter().map(|step| (step.why.mode, step.why.attributes)).collect::<Vec<_>>()
    };
    let (none, nothing) = (Lacks::default(), [(false, false); 0]);
    let plain = Lacks { user: true, security: true, trusted: true, ..none };
    let all = Lacks { lists: true, ..plain };
    assert_eq!(steps(none, &with(0o674, &names)), nothing);
    assert_eq!(steps(none, &with(0o674, &names[1..])), [(false, true)]);
    for (lacks, names) in [
        (Lacks { user: true, ..none }, &names[1..]),
        (Lacks { trusted: true, ..none }, &names[..3]),
        (plain, &names[1..2]),
    ] {
        assert_eq!(steps(lacks, &with(0o674, names)), nothing, "{lacks:?}");
        assert_eq!(steps(lacks, &with(0o674, &[])), [(false, true)], "{lacks:?}");
    }
    // What the list took from the group nobody gets.
    assert_eq!(steps(all, &with(0o604, &[])), nothing);
    assert_eq!(steps(all, &with(0o674, &[])), [(true, false)]);
    assert_eq!(steps(all, &with(0o604, &names[..1])), [(false, true)], "there is one after all");
}

#[test]
fn streams_that_are_no_trees_are_refused() {
    let mut unsorted = small(&["a", "b"]).found(1);
    unsorted.swap(1, 2);
    let mut diff = Diff::new(Options::default());
    assert_eq!(diff.push(Side::Source, unsorted, true).expect_err("refused").code, Code::Protocol);
    // What both have is behind what either had.
    for side in [Side::Source, Side::Target] {
        let mut diff = Diff::new(Options::default());
        diff.push(side, small(&["a", "b"]).found(1), false).expect("sorted");
        let refused = diff.push_alike(small(&["b"]).found(1).split_off(1), [true; 2]);
        assert_eq!(refused.expect_err("it was there").code, Code::Protocol);
        diff.push_alike(small(&["c"]).found(1).split_off(1), [false; 2]).expect("behind both");
        let refused = diff.push(side, small(&["c"]).found(1).split_off(1), true);
        assert_eq!(refused.expect_err("it was there").code, Code::Protocol);
    }
    let mut orphan = small(&["a/b"]).found(1);
    drop(orphan.remove(1));
    let mut diff = Diff::new(Options::default());
    diff.push(Side::Source, orphan, true).expect("sorted");
    diff.push(Side::Target, Vec::new(), true).expect("empty");
    let end = std::iter::repeat_with(|| diff.next_step()).find(|next| next.is_err());
    assert_eq!(end.expect("it ends").expect_err("refused").code, Code::Protocol);
}
