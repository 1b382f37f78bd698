//! What strace writes down, call by call: names, arguments, results, and which
//! calls were over when one began. Knows the format of strace and nothing of
//! files. Called by `disk`.

use std::collections::HashMap;

/// The words that run a command under strace: it stays our child, and strace is a child of it.
pub fn wrapper(log: &str) -> Vec<&str> {
    let words = ["strace", "-D", "-f", "-xx", "-s", STRING_BYTES_MAX, "--seccomp-bpf"];
    [&words[..], &["-o", log, "-e", CALLS]].concat()
}

/// More than the longest write of ours.
const STRING_BYTES_MAX: &str = "2000000";

/// All that can change a file or a folder, or what a descriptor means.
const CALLS: &str = "trace=open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,lseek,write,writev,\
    pwrite64,pwritev,pwritev2,sendfile,splice,copy_file_range,ioctl,mmap,truncate,ftruncate,fallocate,\
    fsync,fdatasync,sync,syncfs,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,\
    mkdirat,symlink,symlinkat";

/// One call that succeeded.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// What was called.
    pub name: String,
    /// With what.
    pub arguments: Vec<Argument>,
    /// What came of it.
    pub result: i64,
    /// How many calls were over when it began; it is as many as this, or more.
    pub began: usize,
}

/// An argument: a string, or a word as strace writes it.
#[derive(Debug, PartialEq, Eq)]
pub enum Argument {
    /// A string.
    Bytes(Vec<u8>),
    /// Anything else.
    Word(String),
}

impl Call {
    /// An argument that is a word.
    pub fn word(&self, place: usize) -> &str {
        match self.arguments.get(place) {
            Some(Argument::Word(word)) => word,
            other => panic!("{}: argument {place} is {other:?}", self.name),
        }
    }

    /// An argument that is a string.
    pub fn bytes(&self, place: usize) -> &[u8] {
        match self.arguments.get(place) {
            Some(Argument::Bytes(bytes)) => bytes,
            other => panic!("{}: argument {place} is {other:?}", self.name),
        }
    }

    /// An argument that is a number.
    pub fn number(&self, place: usize) -> i64 {
        self.word(place).parse().unwrap_or_else(|_| panic!("{self:?}: no number at {place}"))
    }
}

/// Whether the log says that the process it is about has ended.
pub fn is_over(log: &[u8]) -> bool {
    let first = log.split(|&byte| byte == b' ').next().unwrap_or_default();
    let last = log.split(|&byte| byte == b'\n').rev().find(|line| !line.is_empty());
    last.is_some_and(|line| line.starts_with(first) && line.ends_with(b"+++"))
}

/// All calls of a log that succeeded, in the order in which they ended. A `close` counts from
/// its beginning: its number may be another file's before it is over.
pub fn parse(log: &[u8]) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut open: HashMap<&[u8], (&[u8], usize)> = HashMap::new();
    for line in log.split(|&byte| byte == b'\n') {
        let Some(space) = line.iter().position(|&byte| byte == b' ') else { continue };
        let (process, text) = (&line[..space], line[space..].trim_ascii_start());
        if let Some(begun) = text.strip_suffix(b" <unfinished ...>") {
            if begun.starts_with(b"close(") {
                let whole = [begun, b") = 0".as_slice()].concat();
                calls.extend(call(&whole, calls.len()));
            } else {
                open.insert(process, (begun, calls.len()));
            }
        } else if let Some(rest) = text.strip_prefix(b"<... ") {
            let Some((begun, began)) = open.remove(process) else { continue };
            let at = rest.windows(8).position(|part| part == b"resumed>").expect("it is resumed");
            calls.extend(call(&[begun, &rest[at + 8..]].concat(), began));
        } else {
            calls.extend(call(text, calls.len()));
        }
    }
    calls
}

/// One line, if it is a call that succeeded.
fn call(text: &[u8], began: usize) -> Option<Call> {
    let open = text.iter().position(|&byte| byte == b'(')?;
    let name = String::from_utf8(text[..open].to_vec()).ok()?;
    let (arguments, rest) = arguments(&text[open + 1..]);
    let rest = std::str::from_utf8(rest).ok()?.trim_start().strip_prefix("= ")?;
    let result = rest.split_whitespace().next()?;
    let result = match result.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).unwrap_or(0),
        None => result.parse().ok()?,
    };
    (result >= 0).then_some(Call { name, arguments, result, began })
}

/// The arguments of a call, and what follows them.
fn arguments(text: &[u8]) -> (Vec<Argument>, &[u8]) {
    let (mut found, mut at, mut start, mut depth) = (Vec::new(), 0, 0, 0);
    let mut string = None;
    loop {
        match text.get(at) {
            Some(b'"') if depth == 0 => {
                let end = at + 1 + text[at + 1..].iter().position(|&b| b == b'"').expect("it ends");
                string = Some(unescape(&text[at + 1..end]));
                at = end;
            }
            Some(b'{' | b'[') => depth += 1,
            Some(b'}' | b']') => depth -= 1,
            Some(b',' | b')') if depth == 0 => {
                let word = String::from_utf8_lossy(text[start..at].trim_ascii());
                match string.take() {
                    Some(bytes) => found.push(Argument::Bytes(bytes)),
                    None if word.is_empty() => {}
                    None => found.push(Argument::Word(word.into_owned())),
                }
                start = at + 1;
                if text[at] == b')' {
                    return (found, &text[at + 1..]);
                }
            }
            Some(_) => {}
            None => return (found, &[]),
        }
        at += 1;
    }
}

/// The bytes of `\x61\x62`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("strace -xx writes all in hex") as u8;
    text.chunks_exact(4).map(|code| digit(code[2]) << 4 | digit(code[3])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_in_the_order_in_which_they_end() {
        let log = br#"7 openat(3, "\x61\x62", O_RDWR|O_CREAT, 0644) = 5
8 fsync(5 <unfinished ...>
7 pwrite64(5, "\x00\xff", 2, 4096) = 2
7 close(5 <unfinished ...>
8 <... fsync resumed>)              = 0
7 <... close resumed>)              = 0
7 unlinkat(3, "\x61", 0) = -1 ENOENT (No such file or directory)
7 openat2(3, "\x2e", {flags=O_RDONLY, resolve=RESOLVE_BENEATH}, 24) = 6
7 +++ exited with 0 +++
"#;
        let calls = parse(log);
        let names: Vec<_> = calls.iter().map(|call| (&call.name[..], call.began)).collect();
        let expected = [("openat", 0), ("pwrite64", 1), ("close", 2), ("fsync", 1), ("openat2", 4)];
        assert_eq!(names, expected);
        assert_eq!(calls[0].bytes(1), b"ab");
        assert_eq!((calls[1].bytes(1), calls[1].number(3)), (&b"\x00\xff"[..], 4096));
        assert!(calls[4].word(2).contains("RESOLVE_BENEATH"), "{:?}", calls[4]);
        assert!(is_over(log));
        assert!(!is_over(&log[..log.len() - 8]));
    }
}
