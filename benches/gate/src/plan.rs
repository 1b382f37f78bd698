//! Two trees of many small files, merged as a mirror does: nearly all equal, some
//! changed, some only on one side.

use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::{Diff, Next, Options, Side};
use verbatim_proto::{Meta, Node, WirePath};

const FOLDERS: usize = 40;
const FILES: usize = 250;
const PAGE: usize = 512;

/// Merges the trees to the end.
pub fn run() {
    let mut diff = Diff::new(Options { delete: true, ..Options::default() });
    let mut sides = [(Side::Source, tree(false)), (Side::Target, tree(true))];
    let mut changes = 0;
    loop {
        match diff.next_step().expect("trees in order") {
            Next::Step(step) => changes += usize::from(step.what.is_change()),
            Next::End => break,
            Next::Need { source, target } => {
                for ((side, nodes), needed) in sides.iter_mut().zip([source, target]) {
                    if needed {
                        let page: Vec<_> = nodes.by_ref().take(PAGE).map(Ok).collect();
                        let done = page.len() < PAGE;
                        diff.push(*side, page, done).expect("in order");
                    }
                }
            }
        }
    }
    assert!(changes > FOLDERS * FILES / 50, "{changes} changes");
}

/// All entries of a side, in the order of a walk.
fn tree(target: bool) -> impl Iterator<Item = Box<Node>> {
    let root = std::iter::once(node("", EntryKind::Folder, 0));
    root.chain((0..FOLDERS).flat_map(move |folder| {
        let own = std::iter::once(node(&format!("{folder:03}"), EntryKind::Folder, 0));
        let files = (0..FILES).filter_map(move |file| {
            let only_other = file % 97 == if target { 5 } else { 6 };
            let changed = target && file % 53 == 7;
            let name = format!("{folder:03}/{file:05}");
            (!only_other).then(|| node(&name, EntryKind::File, i64::from(changed)))
        });
        own.chain(files)
    }))
}

fn node(path: &str, kind: EntryKind, mtime_ns: i64) -> Box<Node> {
    let path = match path {
        "" => WirePath::root(),
        path => WirePath::parse(path.as_bytes()).expect("plain"),
    };
    let meta = Meta { mode: 0o755, mtime_ns, ..Meta::default() };
    Box::new(Node { path, kind, size: 4096, meta, twin: None, digest: None })
}
