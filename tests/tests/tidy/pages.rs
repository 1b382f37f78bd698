//! The pages on the design: ARCHITECTURE.md and docs/design. Keeps them short enough to be read to
//! their end, and keeps the paths and the links in them true. Says nothing of other pages.

use std::path::Path;

use super::sources::{Source, assert_none, root, sources};

/// The most words of ARCHITECTURE.md.
const ARCHITECTURE_WORDS_MAX: usize = 2000;

/// The most words of a page in docs/design.
const DESIGN_WORDS_MAX: usize = 1500;

/// Where the pages on single subjects are.
const DESIGN: &str = "docs/design/";

/// The page on everything.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Folders of the repository that pages name paths in.
const TOP: &[&str] = &["benches/", "client/", "common/", "configs/", "docs/", "server/", "tests/"];

/// A rule that saw fewer pages than this saw the wrong folder.
const PAGES_MIN: usize = 8;

fn pages() -> Vec<Source> {
    let is_page = |path: &str| path == ARCHITECTURE || path.starts_with(DESIGN);
    let pages: Vec<_> = sources().into_iter().filter(|source| is_page(&source.path)).collect();
    assert!(pages.len() > PAGES_MIN, "only {} pages", pages.len());
    pages
}

#[test]
fn design_pages_are_short_enough_to_be_read() {
    let long: Vec<_> = pages().iter().filter_map(|page| too_long(&page.path, &page.text)).collect();
    assert_none("pages too long; a detail goes to a page of its subject in docs/design", &long);
}

#[test]
fn paths_and_links_of_design_pages_exist() {
    let root = root();
    // The library of the server is in server/ or in server/lib/.
    let there = |path: &str| {
        let other = path.strip_prefix("server/lib").map(|rest| format!("server{rest}"));
        root.join(path).exists() || other.is_some_and(|path| root.join(path).exists())
    };
    let headings = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut gone = Vec::new();
    for page in pages() {
        let named = named_paths(&page.text).into_iter().filter(|path| !there(path));
        gone.extend(named.map(|path| format!("{}: no file {path}", page.path)));
        let links = linked_paths(&page.path, &page.text).into_iter();
        let broken = links.filter(|(path, anchor)| {
            !there(path) || anchor.as_ref().is_some_and(|it| !anchors(&headings(path)).contains(it))
        });
        gone.extend(broken.map(|(path, anchor)| {
            format!("{}: no link {path}#{}", page.path, anchor.unwrap_or_default())
        }));
    }
    assert_none("design pages name what is not there", &gone);
}

/// Why a page has too many words, if it has.
fn too_long(path: &str, text: &str) -> Option<String> {
    let max = if path == ARCHITECTURE { ARCHITECTURE_WORDS_MAX } else { DESIGN_WORDS_MAX };
    let words = text.split_whitespace().count();
    (words > max).then(|| format!("{path}: {words} words, at most {max}"))
}

/// The paths of the repository that a page names as code: all that begin in one of its folders,
/// and every Rust file with a folder before it.
fn named_paths(text: &str) -> Vec<&str> {
    let is_path = |code: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let begins = TOP.iter().any(|top| code.starts_with(top));
        code.chars().all(plain) && (begins || code.contains('/') && code.ends_with(".rs"))
    };
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(is_path).collect()
}

/// The files that a page links to, from the root of the repository, with the heading in them.
fn linked_paths(page: &str, text: &str) -> Vec<(String, Option<String>)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://"));
    local.map(|target| resolve(page, target)).collect()
}

/// A link of a page, as a path from the root and a heading.
fn resolve(page: &str, target: &str) -> (String, Option<String>) {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    if path.is_empty() {
        return (page.to_owned(), anchor);
    }
    let folder = Path::new(page).parent().and_then(Path::to_str).unwrap_or_default();
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    (parts.join("/"), anchor)
}

/// How the headings of a page are linked to: in lower case, without signs, with hyphens for blanks.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let plain = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let kept: String = line.trim_start_matches('#').trim().chars().filter(plain).collect();
        kept.to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn a_long_page_is_seen() {
    let words = |count: usize| "word ".repeat(count);
    assert_eq!(too_long(ARCHITECTURE, &words(ARCHITECTURE_WORDS_MAX)), None);
    assert_eq!(too_long("docs/design/verbs.md", &words(DESIGN_WORDS_MAX)), None);
    let long = too_long("docs/design/verbs.md", &words(DESIGN_WORDS_MAX + 1));
    assert_eq!(long.as_deref(), Some("docs/design/verbs.md: 1501 words, at most 1500"));
}

#[test]
fn paths_and_links_of_a_page_are_seen() {
    let page = "`a/b.rs` and `common/x`, not `b.rs`, `fabric::ports` or `Open{a/b}`.\n`tests/run`";
    assert_eq!(named_paths(page), ["a/b.rs", "common/x", "tests/run"]);
    let page = "[a](../mount.md#the-cache) [b](verbs.md) [c](#memory) [d](https://example.org/x)";
    let links = linked_paths("docs/design/sync.md", page);
    let link = |path: &str, anchor: Option<&str>| (path.to_owned(), anchor.map(str::to_owned));
    let expected = [
        link("docs/mount.md", Some("the-cache")),
        link("docs/design/verbs.md", None),
        link("docs/design/sync.md", Some("memory")),
    ];
    assert_eq!(links, expected);
    assert_eq!(anchors("# The cache\ntext\n## Metadata (`-p`)\n"), ["the-cache", "metadata--p"]);
}
