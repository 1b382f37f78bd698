//! The files of the repository as the rules read them: text files that git knows, the Rust files
//! among them, and the lines of a file that a scanner hits. Says nothing of what they should be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::text::{without_tests, without_text};

/// What the names of our packages begin with.
pub const OURS: &str = "verbatim-";

/// A rule that saw fewer files than this saw the wrong folder.
pub const FILES_MIN: usize = 10;

/// A text file of the repository.
pub struct Source {
    /// Where it is, from the root of the repository.
    pub path: String,
    pub text: String,
}

impl Source {
    /// Whether the whole file is there for testing or measuring.
    pub fn is_test(&self) -> bool {
        let folders = ["tests", "benches", "examples", "tests.rs"];
        self.path.split('/').any(|name| folders.contains(&name))
    }

    /// The code that ships: comments, literals and tests blanked.
    pub fn shipped(&self) -> String {
        if self.is_test() { String::new() } else { without_tests(&without_text(&self.text)) }
    }
}

pub fn root() -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    Path::new(&crate_folder).parent().expect("the crate is in the workspace").to_owned()
}

/// The text files of the repository, committed or about to be; those that git ignores are not
/// of it. Without git, every file below the root but the outputs of builds.
pub fn sources() -> Vec<Source> {
    let root = root();
    let git = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(&root)
        .output();
    let paths = match git {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8(output.stdout).expect("our file names are text");
            names.split_terminator('\0').map(str::to_owned).collect()
        }
        _ => walk(&root, &root),
    };
    let read = |path: String| {
        let text = fs::read_to_string(root.join(&path)).ok()?;
        Some(Source { path, text })
    };
    let sources: Vec<Source> = paths.into_iter().filter_map(read).collect();
    assert!(sources.len() > FILES_MIN, "only {} files in {}", sources.len(), root.display());
    sources
}

fn walk(folder: &Path, root: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && ![".git", "target", "cache"].iter().any(|skip| name == **skip) {
            paths.extend(walk(&path, root));
        } else if !is_folder {
            let below = path.strip_prefix(root).expect("it is below the root");
            paths.push(below.to_str().expect("our file names are text").to_owned());
        }
    }
    paths
}

pub fn rust_sources() -> Vec<Source> {
    let rust: Vec<_> = sources().into_iter().filter(|s| s.path.ends_with(".rs")).collect();
    assert!(rust.len() > FILES_MIN, "only {} Rust files", rust.len());
    rust
}

/// Fails with all violations at once, one a line.
pub fn assert_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}\n", violations.join("\n  "));
}

pub fn metadata() -> cargo_metadata::Metadata {
    let manifest = root().join("Cargo.toml");
    let metadata = cargo_metadata::MetadataCommand::new().manifest_path(manifest).no_deps().exec();
    metadata.expect("cargo knows the workspace")
}

/// Our packages, and the names of the packages that each depends on, for its tests too.
pub fn dependencies() -> Vec<(String, Vec<String>)> {
    let needs = |package: &cargo_metadata::Package| {
        package.dependencies.iter().map(|needed| needed.name.to_string()).collect()
    };
    metadata().packages.iter().map(|package| (package.name.to_string(), needs(package))).collect()
}

/// The numbers of the lines with `needle` in them.
pub fn find_lines(text: &str, needle: &str) -> Vec<usize> {
    lines_where(text, |line| line.contains(needle))
}

pub fn lines_where(text: &str, mut hit: impl FnMut(&str) -> bool) -> Vec<usize> {
    let numbered = (1..).zip(text.lines());
    numbered.filter(|(_, line)| hit(line)).map(|(number, _)| number).collect()
}

/// Runs a line scanner over files; `file:line` of each hit.
pub fn find_in(sources: &[Source], scan: impl Fn(&Source) -> Vec<usize>) -> Vec<String> {
    let hits = |source| scan(source).into_iter().map(|line| format!("{}:{line}", source.path));
    sources.iter().flat_map(hits).collect()
}

/// The libraries and programs of the workspace: the package of each without what the names of all
/// begin with, and its first file.
pub fn crate_roots() -> Vec<(String, String)> {
    let (metadata, root) = (metadata(), root());
    let mut roots = Vec::new();
    for package in &metadata.packages {
        for target in package.targets.iter().filter(|t| t.is_lib() || t.is_bin()) {
            let name = package.name.strip_prefix(OURS).unwrap_or(&package.name);
            let file = target.src_path.strip_prefix(&root).expect("it is below the root");
            roots.push((name.to_owned(), file.to_string()));
        }
    }
    assert!(roots.len() > FILES_MIN, "only {} crates", roots.len());
    roots
}

/// Every Rust file by its path.
pub fn rust_files() -> BTreeMap<String, String> {
    rust_sources().into_iter().map(|source| (source.path, source.text)).collect()
}
