//! Patterns of names, as shells have them: `*`, `?`, `[a-z]`, `[!a-z]`, and `\`
//! before a letter that means itself. Pure; used by the client for sources with
//! wildcards, and by both sides for `--exclude` and `--include`.
//!
//! Names are bytes. Where they are UTF-8 a `?` is one character, elsewhere one
//! byte. The time to match grows with pattern times name, whatever the pattern. All
//! patterns of a scan together take so many steps for one path and no more: a peer
//! that sends what takes long gets an error, and not the processor. Steps that are many
//! are told to a meter, which may make the thread wait, so that asking over and over
//! gets a peer no more.

use crate::{Code, Fault, WirePath};
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::sync::Arc;

/// The most patterns of one scan.
pub const EXCLUDES_MAX: usize = 256;

/// The longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;

/// How often `**` may stand in a pattern.
pub const DEPTHS_MAX: usize = 4;

/// Steps that all patterns of a scan may take for one path, each the comparison of two letters or
/// two names: about a millisecond. `*.o` takes about ten.
pub const STEPS_MAX: u64 = 1 << 18;

/// Steps for one path that no meter is told of: as many as looking at the path takes anyway.
const STEPS_FREE: u64 = 1 << 10;

/// Told of paths for which patterns took many steps, and how many; it may wait. Nobody, by default.
#[derive(Clone, Default)]
pub struct Meter(Option<Arc<dyn Fn(u64) + Send + Sync>>);

impl Meter {
    /// Tells this.
    pub fn new(spend: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(spend)))
    }

    fn spend(&self, steps: u64) {
        if let Some(spend) = self.0.as_ref().filter(|_| steps > STEPS_FREE) {
            spend(steps);
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meter({})", self.0.is_some())
    }
}

/// A pattern of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Any run of letters, the empty one included.
    Any,
    One,
    Letter(u32),
    Class {
        inverse: bool,
        ranges: Vec<(u32, u32)>,
    },
}

impl Pattern {
    /// Reads a pattern. Every text is one: a bracket that is not closed means itself.
    pub fn parse(text: &[u8]) -> Self {
        let letters = letters(text);
        let mut tokens = Vec::new();
        let mut rest = letters.as_slice();
        while let Some((&first, behind)) = rest.split_first() {
            rest = behind;
            tokens.push(match char::from_u32(first) {
                Some('*') => Token::Any,
                Some('?') => Token::One,
                Some('[') => match parse_class(behind) {
                    Some((class, behind)) => {
                        rest = behind;
                        class
                    }
                    None => Token::Letter(first),
                },
                Some('\\') if !behind.is_empty() => {
                    rest = &behind[1..];
                    Token::Letter(behind[0])
                }
                _ => Token::Letter(first),
            });
        }
        Self { tokens }
    }

    /// The one name it stands for, if it is one.
    pub fn literal(&self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        for token in &self.tokens {
            let Token::Letter(letter) = token else { return None };
            match char::from_u32(*letter) {
                Some(letter) => name.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
                None => name.push((letter - NO_CHARACTER) as u8),
            }
        }
        Some(name)
    }

    /// Whether a name is one of those it stands for.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.fits(&letters(name), &Cell::new(u64::MAX))
    }

    fn fits(&self, name: &[u32], steps: &Cell<u64>) -> bool {
        // Its end decides about most names, and in one step.
        if let (Some(end), Some(&letter)) = (self.tokens.last(), name.last())
            && !(*end == Token::Any || end.takes(letter))
        {
            steps.set(steps.get().saturating_sub(1));
            return false;
        }
        let takes = |token: &Token, letter: &u32| token.takes(*letter);
        wild(&self.tokens, name, |token| *token == Token::Any, takes, steps)
    }

    /// The same as a shell has it: a name that begins with a dot is hidden, unless the pattern
    /// begins with one too.
    pub fn matches_shown(&self, name: &[u8]) -> bool {
        let asks = self.tokens.first() == Some(&Token::Letter(u32::from('.')));
        (asks || !name.starts_with(b".")) && self.matches(name)
    }
}

impl Token {
    fn takes(&self, letter: u32) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Letter(own) => *own == letter,
            Self::Class { inverse, ranges } => {
                ranges.iter().any(|&(first, last)| (first..=last).contains(&letter)) != *inverse
            }
        }
    }
}

/// Paths that a copy leaves out. A pattern without a slash is of a name at any depth; one with
/// a slash is of a path from the root of the tree, where `**` stands for any number of folders.
/// A slash at the end makes it of folders alone. What is in an excluded folder is excluded.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    texts: Vec<Vec<u8>>,
    rules: Vec<Rule>,
    meter: Meter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// Whether it is of a path from the root of the tree.
    anchored: bool,
    /// Name by name; `None` for any number of folders.
    names: Vec<Option<Pattern>>,
    only_folders: bool,
}

impl Excludes {
    /// Reads patterns, each as the user or a peer wrote it.
    pub fn parse(texts: Vec<Vec<u8>>) -> Result<Self, Fault> {
        if texts.len() > EXCLUDES_MAX {
            let text = format!("{} patterns are more than {EXCLUDES_MAX}", texts.len());
            return Err(Fault::new(Code::Limit, text));
        }
        let rules = texts.iter().map(|text| Rule::parse(text)).collect::<Result<_, _>>()?;
        Ok(Self { texts, rules, meter: Meter::default() })
    }

    /// The same, told to a meter.
    #[must_use]
    pub fn metered(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// The patterns as they were written.
    pub fn texts(&self) -> &[Vec<u8>] {
        &self.texts
    }

    /// Whether a path of a tree is left out, where the folders it is in are not. An error where it
    /// takes too many steps to say.
    pub fn excludes(&self, path: &WirePath, is_folder: bool) -> Result<bool, Fault> {
        let Some(looked) = Looked::at(path, is_folder) else { return Ok(false) };
        let fits = self.rules.iter().any(|rule| looked.fits(rule));
        looked.said(fits, &self.meter)
    }
}

/// What a mirror leaves out: patterns as `Excludes` has them, in order, and the last one that
/// fits decides, as in a `.gitignore`. One with a `!` in front takes back what others left out; but
/// what is in a folder that is left out is not looked at.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    texts: Vec<Vec<u8>>,
    /// Whether it takes back, and what.
    rules: Vec<(bool, Rule)>,
    meter: Meter,
}

impl Filter {
    /// Reads patterns, each as the user or a peer wrote it.
    pub fn parse(texts: Vec<Vec<u8>>) -> Result<Self, Fault> {
        if texts.len() > EXCLUDES_MAX {
            let text = format!("{} patterns are more than {EXCLUDES_MAX}", texts.len());
            return Err(Fault::new(Code::Limit, text));
        }
        let parse = |text: &Vec<u8>| {
            let body = text.strip_prefix(b"!");
            Ok((body.is_some(), Rule::parse(body.unwrap_or(text))?))
        };
        let rules = texts.iter().map(parse).collect::<Result<_, Fault>>()?;
        Ok(Self { texts, rules, meter: Meter::default() })
    }

    /// The same, told to a meter.
    #[must_use]
    pub fn metered(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// The patterns as they were written.
    pub fn texts(&self) -> &[Vec<u8>] {
        &self.texts
    }

    /// Whether a path of a tree is left out, where the folders it is in are not. An error where it
    /// takes too many steps to say.
    pub fn excludes(&self, path: &WirePath, is_folder: bool) -> Result<bool, Fault> {
        let Some(looked) = Looked::at(path, is_folder) else { return Ok(false) };
        let last = self.rules.iter().rev().find(|(_, rule)| looked.fits(rule));
        looked.said(last.is_some_and(|(back, _)| !back), &self.meter)
    }
}

/// A path while rules are tried on it.
struct Looked<'a> {
    path: &'a WirePath,
    is_folder: bool,
    /// Its last name.
    last: Vec<u32>,
    /// All of its names, for rules that want them.
    names: OnceCell<Vec<Vec<u32>>>,
    steps: Cell<u64>,
}

impl<'a> Looked<'a> {
    /// None at the root of a tree, which has no name; whether it is copied was decided by who named
    /// it.
    fn at(path: &'a WirePath, is_folder: bool) -> Option<Self> {
        let last = letters(path.name()?);
        let (names, steps) = (OnceCell::new(), Cell::new(STEPS_MAX));
        Some(Self { path, is_folder, last, names, steps })
    }

    fn fits(&self, rule: &Rule) -> bool {
        if rule.only_folders && !self.is_folder {
            return false;
        }
        let names = match rule.anchored {
            true => self.names.get_or_init(|| self.path.names().map(letters).collect()),
            false => std::slice::from_ref(&self.last),
        };
        let fits = |pattern: &Option<Pattern>, name: &Vec<u32>| {
            pattern.as_ref().is_some_and(|pattern| pattern.fits(name, &self.steps))
        };
        wild(&rule.names, names, Option::is_none, fits, &self.steps)
    }

    /// What was found, unless steps were missing for it.
    fn said(&self, fits: bool, meter: &Meter) -> Result<bool, Fault> {
        meter.spend(STEPS_MAX - self.steps.get());
        if self.steps.get() > 0 {
            return Ok(fits);
        }
        let text = format!("the patterns of what is left out take too long to match {}", self.path);
        Err(Fault::new(Code::Limit, text))
    }
}

impl Rule {
    fn parse(text: &[u8]) -> Result<Self, Fault> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        if text.len() > PATTERN_BYTES_MAX {
            let text = format!("pattern {:.40}... is longer than {PATTERN_BYTES_MAX}", shown());
            return Err(Fault::new(Code::Limit, text));
        }
        let only_folders = text.ends_with(b"/");
        let body = text.strip_suffix(b"/").unwrap_or(text);
        let anchored = body.contains(&b'/');
        let names = body.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<_> =
            names.map(|name| (name != b"**").then(|| Pattern::parse(name))).collect();
        if names.iter().filter(|name| name.is_none()).count() > DEPTHS_MAX {
            let text = format!("pattern {:.40} has more than {DEPTHS_MAX} `**`", shown());
            return Err(Fault::new(Code::Limit, text));
        }
        if names.is_empty() {
            let text = format!("pattern {:?} has no name in it", shown());
            return Err(Fault::new(Code::BadPath, text));
        }
        Ok(Self { anchored, names, only_folders })
    }
}

/// Whether a list of patterns fits a list of things, where some patterns stand for any run.
/// Only the last such run is ever made longer, so it takes at most the product of both lengths;
/// and no more steps than are left, without which nothing fits.
fn wild<P, T>(
    patterns: &[P],
    things: &[T],
    is_run: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
    steps: &Cell<u64>,
) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut last_run: Option<(usize, usize)> = None;
    loop {
        let Some(left) = steps.get().checked_sub(1) else { return false };
        steps.set(left);
        match (patterns.get(at), things.get(seen)) {
            (Some(pattern), _) if is_run(pattern) => {
                last_run = Some((at, seen));
                at += 1;
                continue;
            }
            (Some(pattern), Some(thing)) if fits(pattern, thing) => {
                (at, seen) = (at + 1, seen + 1);
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        match last_run {
            Some((run, taken)) if taken < things.len() => {
                last_run = Some((run, taken + 1));
                (at, seen) = (run + 1, taken + 1);
            }
            _ => return false,
        }
    }
}

/// What is between brackets, and what is behind them; `None` where they are not closed.
fn parse_class(mut rest: &[u32]) -> Option<(Token, &[u32])> {
    let is = |letter: Option<&u32>, what: char| letter == Some(&u32::from(what));
    let inverse = is(rest.first(), '!') || is(rest.first(), '^');
    rest = &rest[usize::from(inverse)..];
    let mut ranges = Vec::new();
    loop {
        let (&first, behind) = rest.split_first()?;
        // A bracket at the beginning means itself.
        if first == u32::from(']') && !ranges.is_empty() {
            return Some((Token::Class { inverse, ranges }, behind));
        }
        let (first, behind) = literal(first, behind)?;
        rest = behind;
        let mut last = first;
        if is(behind.first(), '-') && behind.get(1).is_some_and(|&end| end != u32::from(']')) {
            (last, rest) = literal(behind[1], &behind[2..])?;
        }
        ranges.push((first, last));
    }
}

/// A letter, or the one behind a backslash.
fn literal(letter: u32, behind: &[u32]) -> Option<(u32, &[u32])> {
    if letter != u32::from('\\') {
        return Some((letter, behind));
    }
    let (&escaped, behind) = behind.split_first()?;
    Some((escaped, behind))
}

/// A name in letters: characters where it is UTF-8, bytes above them where it is not.
fn letters(name: &[u8]) -> Vec<u32> {
    let mut letters = Vec::with_capacity(name.len());
    for part in name.utf8_chunks() {
        letters.extend(part.valid().chars().map(u32::from));
        letters.extend(part.invalid().iter().map(|&byte| NO_CHARACTER + u32::from(byte)));
    }
    letters
}

/// Behind the last character there is.
const NO_CHARACTER: u32 = char::MAX as u32 + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_meter_is_told_of_paths_that_took_many_steps_and_of_no_others() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let taken = Arc::new(AtomicU64::new(0));
        let told = taken.clone();
        let meter = Meter::new(move |steps| {
            told.fetch_add(steps, Ordering::Relaxed);
        });
        let long = WirePath::parse("x".repeat(200).as_bytes()).expect("plain");
        let texts = |text: &[u8]| vec![text.to_vec(); 20];
        for text in [&b"*o*"[..], b"*[ab]xxxx*x"] {
            let excludes = Excludes::parse(texts(text)).expect("plain").metered(meter.clone());
            let filter = Filter::parse(texts(text)).expect("plain").metered(meter.clone());
            for path in [&long, &WirePath::parse(b"brief").expect("plain")] {
                let before = taken.load(Ordering::Relaxed);
                assert_eq!(excludes.excludes(path, false), Ok(false));
                assert_eq!(filter.excludes(path, false), Ok(false));
                let steps = taken.load(Ordering::Relaxed) - before;
                let is_long = path.as_bytes().len() > 100;
                assert_eq!(steps > 2 * STEPS_FREE, is_long, "{steps} steps");
            }
        }
    }

    #[test]
    fn the_last_rule_that_fits_decides() {
        let filter = |rules: &[&str]| {
            let texts = rules.iter().map(|rule| rule.as_bytes().to_vec()).collect();
            Filter::parse(texts).expect("plain")
        };
        let path = |text: &str| WirePath::parse(text.as_bytes()).expect("plain");
        let rules = filter(&["*.o", "!keep.o", "/keep.o", "build/"]);
        let excludes = |rules: &Filter, path: WirePath, is_folder| {
            rules.excludes(&path, is_folder).expect("few steps")
        };
        assert!(excludes(&rules, path("a/b.o"), false));
        assert!(!excludes(&rules, path("a/keep.o"), false));
        assert!(excludes(&rules, path("keep.o"), false), "from the root it is left out again");
        assert!(excludes(&rules, path("a/build"), true));
        assert!(!excludes(&rules, path("build"), false));
        assert!(!excludes(&filter(&["*"]), WirePath::root(), true), "the root was named");
        assert!(excludes(&filter(&["\\!a"]), path("!a"), false), "a backslash takes it literally");
    }

    fn fits(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern.as_bytes()).matches(name.as_bytes())
    }

    #[test]
    fn stars_marks_and_classes_match_as_in_a_shell() {
        for (pattern, name) in [
            ("*", ""),
            ("*.bin", "a.bin"),
            ("*.bin", ".bin"),
            ("a*b*c", "a-b-b-c"),
            ("?.bin", "\u{e9}.bin"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[^a-c]x", "dx"),
            ("[]x]", "]"),
            ("[a-]", "-"),
            ("[\u{430}-\u{44f}]", "\u{436}"),
            ("[\\]]", "]"),
            ("a[", "a["),
            ("a[b", "a[b"),
            ("\\*", "*"),
            ("x\\", "x\\"),
            ("shard-[0-9][0-9].tar", "shard-07.tar"),
        ] {
            assert!(fits(pattern, name), "{pattern} does not match {name}");
        }
        for (pattern, name) in [
            ("*.bin", "a.bin2"),
            ("?", ""),
            ("?", "ab"),
            ("[a-c]x", "dx"),
            ("[!a-c]x", "bx"),
            ("\\*", "a"),
            ("a*b", "ac"),
            ("A", "a"),
            ("[]", "x"),
        ] {
            assert!(!fits(pattern, name), "{pattern} matches {name}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_one_letter_each() {
        let name = b"not text \xff\xfe";
        assert!(Pattern::parse(b"not text ??").matches(name));
        assert!(Pattern::parse(b"*\xff\xfe").matches(name));
        assert!(!Pattern::parse(b"*\xff\xff").matches(name));
        assert!(!Pattern::parse(b"not text ?").matches(name));
    }

    #[test]
    fn a_pattern_without_wildcards_is_one_name() {
        let literal = |text: &[u8]| Pattern::parse(text).literal();
        assert_eq!(literal(b"a\\*\xff\xc3\xa9"), Some(b"a*\xff\xc3\xa9".to_vec()));
        assert_eq!(literal(b"a[b"), Some(b"a[b".to_vec()));
        assert!(literal(b"a*").is_none() && literal(b"[a]").is_none() && literal(b"?").is_none());
    }

    #[test]
    fn hidden_names_are_matched_only_when_asked_for() {
        let shown = |pattern: &[u8], name: &[u8]| Pattern::parse(pattern).matches_shown(name);
        assert!(shown(b"*", b"a") && shown(b".*", b".a") && shown(b".a", b".a"));
        assert!(!shown(b"*", b".a") && !shown(b"?a", b".a") && !shown(b"[.]a", b".a"));
    }

    #[test]
    fn many_stars_take_no_longer_than_their_product() {
        let (pattern, name) = ("*a".repeat(500), "a".repeat(255));
        assert!(!fits(&pattern, &name), "ends at all");
    }

    fn excluded(patterns: &[&str], path: &str, is_folder: bool) -> bool {
        let texts = patterns.iter().map(|text| text.as_bytes().to_vec()).collect();
        let path = WirePath::parse(path.as_bytes()).expect("plain");
        Excludes::parse(texts).expect("patterns").excludes(&path, is_folder).expect("few steps")
    }

    #[test]
    fn a_name_is_excluded_at_any_depth_and_a_path_from_the_root() {
        assert!(excluded(&["*.tmp"], "x.tmp", false) && excluded(&["*.tmp"], "a/b/x.tmp", false));
        assert!(excluded(&["*.tmp", "*.log"], "a/x.log", false));
        assert!(excluded(&["*"], ".hidden", false), "hidden names are names");
        assert!(!excluded(&["*.tmp"], "x.tmp/y", false), "its folder was not walked");
        assert!(excluded(&["/x"], "x", false) && !excluded(&["/x"], "a/x", false));
        assert!(excluded(&["a/x"], "a/x", false) && !excluded(&["a/x"], "b/a/x", false));
        assert!(excluded(&["a/*/x"], "a/b/x", false) && !excluded(&["a/*/x"], "a/b/c/x", false));
        assert!(excluded(&["a/**/x"], "a/x", false) && excluded(&["a/**/x"], "a/b/c/x", false));
        assert!(excluded(&["cache/"], "a/cache", true) && !excluded(&["cache/"], "a/cache", false));
        assert!(!excluded(&[], "a", false));
        assert!(!excluded(&["**", "/**", "*"], "", true), "the root of a tree stays");
    }

    #[test]
    fn patterns_that_take_long_are_an_error_and_take_no_time() {
        let deep = |name: &str, depth| {
            WirePath::parse(vec![name; depth].join("/").as_bytes()).expect("plain")
        };
        let attack = format!("**/*[qrstuvwxyza]{}", "/x".repeat(70)).into_bytes();
        let attack = vec![attack; EXCLUDES_MAX];
        // All but the last name fit.
        let path = deep("x", 126).with(b"b").expect("plain");
        let told = Excludes::parse(attack.clone()).expect("parses").excludes(&path, true);
        let fault = told.expect_err("it takes too long");
        assert!(fault.code == Code::Limit && fault.text.contains("take too long"), "{fault:?}");
        let told = Filter::parse(attack).expect("parses").excludes(&path, true);
        assert!(told.is_err(), "{told:?}");
        // As many patterns as there may be, of the usual kind, on a deep path with long names.
        let usual =
            (0..EXCLUDES_MAX).map(|number| format!("/data/**/cache{number}/*.o").into_bytes());
        let usual = Excludes::parse(usual.collect()).expect("parses");
        assert_eq!(usual.excludes(&deep(&"long".repeat(60), 100), false), Ok(false));
        let many = Excludes::parse(vec![b"**/a/**/b/**/c/**/d/**".to_vec()]).expect_err("five");
        assert!(many.text.contains("more than 4"), "{many:?}");
    }

    #[test]
    fn patterns_without_a_name_and_without_end_are_refused() {
        for bad in ["", "/", "//"] {
            let fault = Excludes::parse(vec![bad.into()]).expect_err(bad);
            assert!(fault.text.contains("no name"), "{fault}");
        }
        assert!(Excludes::parse(vec![vec![b'x'; PATTERN_BYTES_MAX + 1]]).is_err());
        assert!(Excludes::parse(vec![b"x".to_vec(); EXCLUDES_MAX + 1]).is_err());
    }

    /// What a pattern of letters, `?` and `*` means, said the slow way.
    fn slow(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|cut| slow(rest, &name[cut..])),
            Some((b'?', rest)) => !name.is_empty() && slow(rest, &name[1..]),
            Some((letter, rest)) => name.first() == Some(letter) && slow(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab?*]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(fits(&pattern, &name), slow(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn no_pattern_and_no_name_panics(
            pattern in prop::collection::vec(any::<u8>(), 0..32),
            name in prop::collection::vec(any::<u8>(), 0..32),
        ) {
            Pattern::parse(&pattern).matches(&name);
        }
    }
}
