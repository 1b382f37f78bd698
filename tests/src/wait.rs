//! Waits of tests: look again and again until something is so, or fail after a limit and say
//! what was seen last. Owns no process and no file; what a look costs is its caller's business.
//! Used through `process`, whose commands and servers are what tests wait for.

use std::fmt::{self, Debug, Display};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a wait looks again.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `look` returns Ok; panics after `limit`, and says what `look` saw last.
#[track_caller]
pub fn wait_for<T, S: Debug>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<T, S>,
) -> T {
    let begin = Instant::now();
    loop {
        let seen = match look() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        let limit_s = limit.as_secs();
        assert!(begin.elapsed() < limit, "{what}: not within {limit_s} s; last seen: {seen:?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What a look returns: Ok when it is done, else what it saw.
pub fn seen<S>(done: bool, seen: S) -> Result<(), S> {
    if done { Ok(()) } else { Err(seen) }
}

/// What a look at one value returns: the value, as Ok when it is as it should be.
pub fn when<S>(seen: S, done: impl FnOnce(&S) -> bool) -> Result<S, S> {
    if done(&seen) { Ok(seen) } else { Err(seen) }
}

/// Ok when there is something at a path; else which folder was looked in, and what is in it.
pub fn exists(path: &Path) -> Result<(), String> {
    let (folder, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    seen(path.exists(), ()).map_err(|()| format!("no {name:?} in {}", contents(folder)))
}

/// A folder and what is in it, in order of the names, with the bytes of each file; or why it
/// cannot be read.
pub fn contents(folder: &Path) -> String {
    let described = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.metadata() {
            Ok(meta) if meta.is_file() => format!("{name} ({} bytes)", meta.len()),
            _ => name,
        }
    };
    match fs::read_dir(folder) {
        Ok(entries) => {
            let mut names: Vec<String> = entries.flatten().map(described).collect();
            names.sort();
            format!("{}: {names:?}", folder.display())
        }
        Err(error) => format!("{}: {error}", folder.display()),
    }
}

/// A log or a JSON value in what a wait says when it gives up: as it is, without escapes.
pub struct Text<T>(pub T);

impl<T: Display> Debug for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.trim_end() {
            "" => f.write_str("(nothing)"),
            text if text.contains('\n') => write!(f, "\n{text}"),
            text => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_gives_up_says_what_it_saw_last() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            when(looks, |looks| *looks == 3)
        };
        assert_eq!(wait_for("three looks", Duration::from_secs(20), &mut look), 3);
        let late = std::panic::catch_unwind(|| {
            wait_for("the lock is free", Duration::ZERO, || seen(false, "process 7 has it"));
        });
        let said = late.expect_err("it is never free");
        let said = said.downcast_ref::<String>().expect("a message");
        assert_eq!(said, "the lock is free: not within 0 s; last seen: \"process 7 has it\"");
    }

    #[test]
    fn a_file_that_is_missing_is_told_with_the_files_that_are_there() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("b"), b"four").expect("a file");
        fs::create_dir(dir.path().join("a")).expect("a folder");
        let told = exists(&dir.path().join("c")).expect_err("there is none");
        let place = dir.path().display();
        assert_eq!(told, format!("no \"c\" in {place}: [\"a\", \"b (4 bytes)\"]"));
        assert_eq!(exists(&dir.path().join("b")), Ok(()));
        let told = exists(&dir.path().join("none/c")).expect_err("there is no folder");
        assert!(told.contains("none: ") && told.contains("o such file"), "{told}");
    }

    #[test]
    fn text_is_printed_as_it_is() {
        let shown = |text: &str| format!("{:?}", Text(text));
        assert_eq!(shown("{\"a\":1}\n"), "{\"a\":1}");
        assert_eq!(shown("one\ntwo\n"), "\none\ntwo");
        assert_eq!(shown(""), "(nothing)");
    }
}
