//! The methods of a type stand in three files of its crate at most. More hide how large the type
//! is: a limit on the lines of a file is then kept by one object in twenty files.
//!
//! Blocks that implement a trait are apart, and blocks of other crates' types.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Crate, Files};
use super::sources::{assert_none, crate_roots, rust_files};

/// How many files may have methods of one type.
const FILES_MAX: usize = 3;

/// Types with methods in more files, as `file::Type`, with their files. It may only go down.
const METHODS_RATCHET: &[(&str, usize)] = &[];

#[test]
fn methods_of_a_type_stand_in_at_most_three_files() {
    let types = files_by_type(&crate_roots(), &rust_files());
    assert!(types.len() > 500, "only {} types", types.len());
    assert_none("types with methods in many files", &verdict(&types, METHODS_RATCHET));
}

/// The files with methods of each type.
fn files_by_type(roots: &[(String, String)], files: &Files) -> BTreeMap<String, BTreeSet<String>> {
    let mut types: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (_, root) in roots {
        for methods in Crate::read(root, files).methods() {
            let of = format!("{}::{}", methods.defined_in, methods.of);
            types.entry(of).or_default().insert(methods.file);
        }
    }
    types
}

/// The types whose files are not as the list has them.
fn verdict(types: &BTreeMap<String, BTreeSet<String>>, list: &[(&str, usize)]) -> Vec<String> {
    let mut verdict = Vec::new();
    for (name, files) in types {
        let entry = list.iter().find(|(listed, _)| listed == name).map(|&(_, files)| files);
        let fault = match (entry, files.len()) {
            (None, 0..=FILES_MAX) => continue,
            (Some(_), 0..=FILES_MAX) => "few now, remove its ratchet entry".to_owned(),
            (Some(allowed), count) if count == allowed => continue,
            (Some(allowed), count) if count < allowed => {
                format!("lower its ratchet from {allowed}")
            }
            _ => format!("at most {}", entry.unwrap_or(FILES_MAX)),
        };
        let shown: Vec<_> = files.iter().map(String::as_str).collect();
        let shown = shown.join(", ");
        verdict.push(format!("{name}: methods in {} files, {fault}: {shown}", files.len()));
    }
    let gone = list.iter().filter(|(listed, _)| !types.contains_key(*listed));
    verdict.extend(gone.map(|(listed, _)| format!("{listed}: gone, remove its ratchet entry")));
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up library whose type `Big` has methods in the root and in `below`.
    fn types(below: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        let mut files = Files::new();
        let mut lib =
            "pub struct Big<T>(T);\nimpl<T: Fn() -> u8> Big<T> { fn a() {} }\n".to_owned();
        for (number, text) in below.iter().enumerate() {
            lib += &format!("mod m{number};\n");
            files.insert(format!("x/src/m{number}.rs"), (*text).to_owned());
        }
        files.insert("x/src/lib.rs".to_owned(), lib);
        files_by_type(&[("x".to_owned(), "x/src/lib.rs".to_owned())], &files)
    }

    const NAME: &str = "x/src/lib.rs::Big";

    #[test]
    fn methods_in_four_files_are_seen() {
        let three = ["use crate::Big;\nimpl Big<u8> {}", "impl super::Big<u16> {}"];
        assert_eq!(verdict(&types(&three), &[]), [""; 0]);
        let four =
            [three[0], three[1], "use crate::Big as Other;\nimpl<T> Other<T> where T: Copy {}"];
        let seen = "x/src/lib.rs::Big: methods in 4 files, at most 3: \
            x/src/lib.rs, x/src/m0.rs, x/src/m1.rs, x/src/m2.rs";
        assert_eq!(verdict(&types(&four), &[]), [seen]);
        assert_eq!(verdict(&types(&four), &[(NAME, 4)]), [""; 0]);
        assert!(verdict(&types(&four), &[(NAME, 5)])[0].contains("lower its ratchet from 5"));
        let few = verdict(&types(&three), &[(NAME, 4)]);
        assert!(few[0].contains("few now, remove its ratchet entry"), "{few:?}");
        let gone = verdict(&types(&three), &[(NAME, 4), ("x/src/lib.rs::Small", 4)]);
        assert!(gone[1].contains("gone, remove its ratchet entry"), "{gone:?}");
    }

    #[test]
    fn traits_tests_types_in_signatures_and_namesakes_are_left_out() {
        let others = [
            "impl Clone for super::Big<u8> { fn clone(&self) -> Self { loop {} } }",
            "#[cfg(test)]\nmod tests { impl crate::Big<u8> {} }",
            "fn f(x: impl Fn(crate::Big<u8>)) -> impl Into<crate::Big<u8>> { loop {} }",
            "struct Big;\nimpl Big {}",
            "// impl crate::Big<u8> {}\nimpl<T> From<T> for crate::Big<T> {}",
        ];
        assert_eq!(types(&others)[NAME].len(), 1);
        assert_eq!(types(&others).len(), 2);
    }
}
