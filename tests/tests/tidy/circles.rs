//! Files of a crate import one way. Two files in a circle are one file that is hard to read: none
//! can be understood, tested or taken out without the other.
//!
//! A module and the modules inside it are apart: a child names what its parent defines, a parent
//! declares its children and hands their names on. So is who imports a name through a re-export:
//! the file counts that defines the name. The crates of a package count as one. A call of a
//! method names no file and is not seen.
//!
//! To see the circles that are left:
//! `cargo test -p verbatim-tests --test tidy one_way -- --nocapture`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Crate, Files, Import};
use super::sources::{assert_none, crate_roots, rust_files};

/// Packages whose circles are still to be cut, with the number of files in circles. It may only
/// go down.
const CIRCLE_RATCHET: &[(&str, usize)] = &[];

/// The imports of each package.
type Packages = BTreeMap<String, BTreeSet<Import>>;

#[test]
fn files_of_a_crate_import_one_way() {
    let packages = imports_of(&crate_roots(), &rust_files());
    let all: usize = packages.values().map(BTreeSet::len).sum();
    assert!(all > 500, "only {all} imports");
    for (package, imports) in &packages {
        for circle in circles(imports) {
            println!("{package}: {}", shown(&circle, imports).trim());
        }
    }
    assert_none("files import each other", &verdict(&packages, CIRCLE_RATCHET));
}

fn imports_of(roots: &[(String, String)], files: &Files) -> Packages {
    let mut packages = Packages::new();
    for (package, root) in roots {
        packages.entry(package.clone()).or_default().extend(Crate::read(root, files).imports());
    }
    packages
}

/// The packages whose circles are not as the list has them, each with its circles.
fn verdict(packages: &Packages, list: &[(&str, usize)]) -> Vec<String> {
    let mut verdict = Vec::new();
    for (package, imports) in packages {
        let circles = circles(imports);
        let files: usize = circles.iter().map(BTreeSet::len).sum();
        let entry = list.iter().find(|(listed, _)| listed == package).map(|&(_, files)| files);
        let fault = match entry.unwrap_or(0) {
            allowed if files == allowed && entry != Some(0) => continue,
            allowed if files > allowed => format!("{files} files in circles, at most {allowed}"),
            _ if files == 0 => "no circles now, remove its ratchet entry".to_owned(),
            allowed => format!("{files} files in circles, lower its ratchet from {allowed}"),
        };
        let shown: String = circles.iter().map(|circle| shown(circle, imports)).collect();
        verdict.push(format!("{package}: {fault}{shown}"));
    }
    let gone = list.iter().filter(|(listed, _)| !packages.contains_key(*listed));
    verdict.extend(gone.map(|(listed, _)| format!("{listed}: gone, remove its ratchet entry")));
    verdict
}

/// Files that reach each other, two or more.
fn circles(imports: &BTreeSet<Import>) -> Vec<BTreeSet<&str>> {
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        edges.entry(&import.from).or_default().insert(&import.to);
    }
    let reached: BTreeMap<_, _> = edges.keys().map(|&file| (file, reach(file, &edges))).collect();
    let mut circles = BTreeSet::new();
    for (file, there) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|from| from.contains(file));
        let circle: BTreeSet<&str> = there.iter().filter(back).copied().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The files to which imports lead from a file.
fn reach<'a>(file: &str, edges: &BTreeMap<&str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = VecDeque::from([file]);
    while let Some(file) = next.pop_front() {
        for &to in edges.get(file).into_iter().flatten() {
            if reached.insert(to) {
                next.push_back(to);
            }
        }
    }
    reached
}

/// The imports that close a circle, with the names that they bring.
fn shown(circle: &BTreeSet<&str>, imports: &BTreeSet<Import>) -> String {
    let mut edges: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for import in imports {
        if circle.contains(&*import.from) && circle.contains(&*import.to) {
            edges.entry((&import.from, &import.to)).or_default().push(&import.name);
        }
    }
    let files: Vec<_> = circle.iter().copied().collect();
    let mut text = format!("\n    circle of {}: {}", files.len(), files.join(", "));
    for ((from, to), names) in edges {
        text += &format!("\n      {from} -> {to}: {}", names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Files {
        texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    /// The circles of a made-up library `x`, and what the rule says of it.
    fn checked(texts: &[(&str, &str)], list: &[(&str, usize)]) -> Vec<String> {
        let roots = [("x".to_owned(), "x/src/lib.rs".to_owned())];
        verdict(&imports_of(&roots, &files(texts)), list)
    }

    const LIB: (&str, &str) = ("x/src/lib.rs", "mod a; mod b; mod c;\npub use a::A;\n");
    const C: (&str, &str) = ("x/src/c.rs", "pub struct C;");

    #[test]
    fn a_circle_is_seen_with_the_names_that_close_it() {
        let a = ("x/src/a.rs", "use crate::b::{B, helper as h};\npub struct A(B);");
        let b = ("x/src/b.rs", "pub struct B; pub fn helper() -> super::a::A { todo!() }");
        let seen = checked(&[LIB, C, a, b], &[]);
        let expected = "x: 2 files in circles, at most 0\
            \n    circle of 2: x/src/a.rs, x/src/b.rs\
            \n      x/src/a.rs -> x/src/b.rs: B, helper\
            \n      x/src/b.rs -> x/src/a.rs: A";
        assert_eq!(seen, [expected]);
    }

    #[test]
    fn a_circle_of_three_is_seen_through_modules_and_re_exports() {
        let a = ("x/src/a.rs", "use crate::b;\npub struct A(b::B);");
        let b = ("x/src/b.rs", "use super::*;\npub struct B(crate::c::C);");
        // The root hands `A` on.
        let c = ("x/src/c.rs", "use crate::A;\npub struct C(A);");
        let seen = checked(&[LIB, a, b, c], &[]);
        assert_eq!(seen.len(), 1);
        assert!(seen[0].contains("circle of 3: x/src/a.rs, x/src/b.rs, x/src/c.rs"), "{seen:?}");
    }

    #[test]
    fn a_method_of_a_type_and_a_macro_are_seen_in_code() {
        let a = ("x/src/a.rs", "pub struct A; fn f() { crate::b::B::new() }");
        let b = ("x/src/b.rs", "pub struct B; fn g() { crate::a::made_by_a_macro!() }");
        assert_eq!(checked(&[LIB, C, a, b], &[]).len(), 1);
    }

    #[test]
    fn parents_children_tests_and_text_are_left_out() {
        let a = ("x/src/a.rs", "mod d;\npub use d::D;\npub struct A(crate::b::B);");
        // Child and parent import each other.
        let d = ("x/src/a/d.rs", "use super::A;\npub struct D(A);");
        let b = (
            "x/src/b.rs",
            "/// See [`crate::a::A`].\npub struct B(crate::c::C);\nconst T: &str = \"crate::a::A\";\n\
             #[cfg(test)]\nmod tests { use crate::a::A; }\n",
        );
        assert_eq!(checked(&[LIB, C, a, d, b], &[]), [""; 0]);
    }

    #[test]
    fn a_name_counts_where_it_is_defined_and_not_where_it_is_handed_on() {
        // `c` imports from the module `a`, but what its child `d` defines; `a` itself imports `c`.
        let a = ("x/src/a/mod.rs", "mod d;\npub use self::d::D;\npub struct A(crate::c::C);");
        let d = ("x/src/a/d.rs", "pub struct D;");
        let c = ("x/src/c.rs", "pub struct C(super::a::D);");
        let b = ("x/src/b.rs", "");
        assert_eq!(checked(&[LIB, a, b, c, d], &[]), [""; 0]);
        let c = ("x/src/c.rs", "pub struct C(super::a::A);");
        assert_eq!(checked(&[LIB, a, b, c, d], &[]).len(), 1);
    }

    #[test]
    fn a_program_reads_the_modules_of_the_paths_that_it_names() {
        let main = ("x/src/bin/p/main.rs", "#[path = \"../shared/mod.rs\"]\nmod shared;\n");
        let shared = ("x/src/bin/shared/mod.rs", "mod a;\nmod b;\n");
        let a = ("x/src/bin/shared/a.rs", "use super::b::B;\npub struct A(B);");
        let b = ("x/src/bin/shared/b.rs", "pub struct B(super::a::A);");
        let roots = [("x".to_owned(), main.0.to_owned())];
        let seen = verdict(&imports_of(&roots, &files(&[main, shared, a, b])), &[]);
        assert!(seen[0].contains("shared/a.rs, x/src/bin/shared/b.rs"), "{seen:?}");
    }

    #[test]
    fn the_number_of_files_in_circles_only_goes_down() {
        let a = ("x/src/a.rs", "pub struct A(crate::b::B);");
        let b = ("x/src/b.rs", "pub struct B(crate::a::A);");
        let texts = [LIB, C, a, b];
        assert_eq!(checked(&texts, &[("x", 2)]), [""; 0]);
        assert!(checked(&texts, &[("x", 1)])[0].starts_with("x: 2 files in circles, at most 1"));
        let lower = "x: 2 files in circles, lower its ratchet from 3";
        assert!(checked(&texts, &[("x", 3)])[0].starts_with(lower));
        let b = ("x/src/b.rs", "pub struct B;");
        let cut = [LIB, C, a, b];
        assert_eq!(checked(&cut, &[("x", 2)]), ["x: no circles now, remove its ratchet entry"]);
        assert_eq!(checked(&cut, &[("y", 2)]), ["y: gone, remove its ratchet entry"]);
    }
}
