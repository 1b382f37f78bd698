//! Modules of a package import one way: each only from the modules below it. A circle of files is
//! found by `circles`; this rule also keeps modules from importing upwards where no circle closes.

use std::collections::BTreeSet;

use super::modules::{Crate, Import};
use super::sources::{assert_none, crate_roots, rust_files};

/// The modules of a package from the lowest up; those in one row know nothing of each other. The
/// root of the package stands above all of them.
const ORDERS: &[(&str, &[&[&str]])] = &[
    ("engine", &[&["model"], &["local_io"], &["connection"], &["transfer"]]),
    (
        "client",
        &[&["tree_sync", "remote_fs"], &["session"], &["watch"], &["cp", "sync"], &["probe"]],
    ),
    (
        "serve",
        &[
            &["event_port", "rdma"],
            &["jobs", "host", "link_worker"],
            &["open_file"],
            &["windows"],
            &["leases"],
        ],
    ),
    (
        "server",
        &[
            &["config"],
            &["limits", "sandbox", "rdma_setup"],
            &["exports"],
            &["observe"],
            &["net", "worker"],
            &["session"],
            &["server"],
        ],
    ),
];

#[test]
fn modules_of_a_package_import_those_below_them() {
    let (roots, files) = (crate_roots(), rust_files());
    let mut all = 0;
    for (package, order) in ORDERS {
        let root = roots.iter().find(|(of, root)| of == package && root.ends_with("/lib.rs"));
        let (_, root) = root.unwrap_or_else(|| panic!("{package} has no library"));
        let imports = Crate::read(root, &files).imports();
        all += imports.len();
        let folder = root.trim_end_matches("lib.rs");
        let names = imports.iter().flat_map(|import| [&import.from, &import.to]);
        let seen: BTreeSet<String> = names.filter_map(|file| module(file, folder)).collect();
        let unseen = order.iter().copied().flatten().filter(|name| !seen.contains(**name));
        let unseen: Vec<String> = unseen.map(|name| format!("{package}: {name}")).collect();
        assert_none("modules of the order that nothing imports and that import nothing", &unseen);
        assert_none("modules import upwards", &upward(&imports, folder, order));
    }
    assert!(all > 50 * ORDERS.len(), "only {all} imports");
}

/// The module of a file, below the folder of its package; none of the root.
fn module(file: &str, folder: &str) -> Option<String> {
    let name = file.strip_prefix(folder)?.split('/').next()?.trim_end_matches(".rs");
    (name != "lib").then(|| name.to_owned())
}

/// The imports that do not point down, and the allowed order behind them.
fn upward(imports: &BTreeSet<Import>, folder: &str, order: &[&[&str]]) -> Vec<String> {
    let rank = |name: &str| order.iter().position(|row| row.contains(&name));
    let mut wrong = Vec::new();
    for Import { from, to, name } in imports {
        let (Some(above), Some(below)) = (module(from, folder), module(to, folder)) else {
            continue;
        };
        match (rank(&above), rank(&below)) {
            _ if above == below => {}
            (Some(from_rank), Some(to_rank)) if from_rank > to_rank => {}
            (Some(_), Some(_)) => wrong.push(format!("{from} imports {name} of {to}")),
            (None, _) => wrong.push(format!("{above} has no place in the order")),
            (_, None) => wrong.push(format!("{below} has no place in the order")),
        }
    }
    if !wrong.is_empty() {
        let rows: Vec<String> = order.iter().map(|row| row.join(", ")).collect();
        wrong.push(format!("allowed, the lowest first: {}", rows.join(" < ")));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(from: &str, to: &str) -> Import {
        let file = |module: &str| format!("x/src/{module}");
        Import { from: file(from), to: file(to), name: "N".into() }
    }

    const ORDER: &[&[&str]] = &[&["low"], &["left", "right"], &["high"]];

    #[test]
    fn an_import_that_points_up_or_sideways_is_seen_with_the_order() {
        let imports = [
            import("high/a.rs", "low.rs"),
            import("left.rs", "low.rs"),
            import("high/a.rs", "high/b.rs"),
            // Upwards, and to a neighbour.
            import("low.rs", "left.rs"),
            import("right/mod.rs", "left.rs"),
        ];
        let seen = upward(&imports.into(), "x/src/", ORDER);
        let expected = [
            "x/src/low.rs imports N of x/src/left.rs",
            "x/src/right/mod.rs imports N of x/src/left.rs",
            "allowed, the lowest first: low < left, right < high",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_module_without_a_place_is_seen_and_the_root_has_none() {
        let imports = [import("new.rs", "low.rs"), import("lib.rs", "high/a.rs")];
        let seen = upward(&imports.into(), "x/src/", ORDER);
        assert_eq!(seen[0], "new has no place in the order");
        assert_eq!(seen.len(), 2, "{seen:?}");
    }
}
