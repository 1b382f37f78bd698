//! Parses sources and targets as users write them: a local path, or a path of an export on a
//! server. Pure; the commands parse every argument here.

use crate::model::placement::is_contents;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use verbatim_proto::WirePath;

/// The port of a server, unless the location names one.
pub const PORT_DEFAULT: u16 = 20490;

/// The prefix of a location with a port.
const SCHEME: &[u8] = b"rdma://";

/// URL schemes of other commands, which would otherwise parse as host names.
const OTHER_SCHEMES: [&str; 9] =
    ["http", "https", "ftp", "sftp", "scp", "ssh", "rsync", "nfs", "s3"];

/// A source or a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path on this machine.
    Local(PathBuf),
    /// A path on a server.
    Remote(Remote),
    /// Standard input as a source, standard output as a target.
    Pipe,
}

/// A path on a server, export first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// A host name or an address.
    pub host: String,
    /// The port of the control connection.
    pub port: u16,
    /// The path; an empty one lists the exports.
    pub path: WirePath,
    /// Whether it ends with a slash: it must be a folder.
    pub is_folder: bool,
    /// Whether it ends with `/.` or names nothing: it stands for the contents of the folder.
    pub contents: bool,
}

/// Why an argument is not a location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{argument:?} is not a location: {cause}")]
pub struct LocationError {
    /// The argument.
    pub argument: String,
    /// What is wrong with it.
    pub cause: String,
}

impl Location {
    /// Parses `HOST:/EXPORT/PATH`, `rdma://HOST[:PORT]/EXPORT/PATH`, `-`, or a local path. As with
    /// scp, a slash before the colon makes a path local: `./a:b`. A file named `-` is written
    /// `./-`.
    pub fn parse(argument: &OsStr) -> Result<Self, LocationError> {
        let bytes = argument.as_bytes();
        let fail = |cause: String| LocationError {
            argument: argument.to_string_lossy().into_owned(),
            cause,
        };
        if bytes.is_empty() {
            return Err(fail("it is empty".into()));
        }
        if bytes == b"-" {
            return Ok(Self::Pipe);
        }
        if let Some((user, host)) = user_and_host(bytes) {
            let cause = "identifies users by tokens and certificates";
            return Err(fail(format!("leave {user}@ out: {host} {cause}")));
        }
        let (authority, path, with_port) = if let Some(rest) = bytes.strip_prefix(SCHEME) {
            let cut = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            (&rest[..cut], &rest[cut..], true)
        } else if let Some(cut) = host_end(bytes) {
            (&bytes[..cut], &bytes[cut + 1..], false)
        } else {
            return Ok(Self::Local(PathBuf::from(OsString::from_vec(bytes.to_vec()))));
        };
        let (host, port) = split_authority(authority, with_port).map_err(fail)?;
        if let Some(cause) = foreign_syntax_hint(&host, path).filter(|_| !with_port) {
            return Err(fail(cause));
        }
        let plain = WirePath::parse(path).map_err(|fault| fail(fault.text))?;
        Ok(Self::Remote(Remote {
            host,
            port,
            path: plain,
            is_folder: path.is_empty() || path.ends_with(b"/"),
            contents: is_contents(path),
        }))
    }
}

impl Remote {
    /// Host and port, for messages.
    pub fn peer(&self) -> String {
        peer(&self.host, self.port)
    }
}

impl std::fmt::Display for Location {
    /// Formats it as the user would write it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Remote(remote) => remote.fmt(f),
            Self::Pipe => f.write_str("-"),
        }
    }
}

impl std::fmt::Display for Remote {
    /// Formats it as `HOST:/EXPORT/PATH`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format_remote(&self.host, &self.path))
    }
}

/// Formats a remote path as `HOST:/EXPORT/PATH`.
pub fn format_remote(host: &str, path: &WirePath) -> String {
    format!("{}:/{path}", bracket_ipv6(host))
}

/// Host and port, for messages.
pub fn peer(host: &str, port: u16) -> String {
    format!("{}:{port}", bracket_ipv6(host))
}

/// Puts an IPv6 address in brackets, because it contains colons.
fn bracket_ipv6(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Where the host of `HOST:PATH` ends: at the first colon, if no slash precedes it.
fn host_end(bytes: &[u8]) -> Option<usize> {
    if bytes.first() == Some(&b'[') {
        let close = bytes.iter().position(|&byte| byte == b']')?;
        return (bytes.get(close + 1) == Some(&b':')).then_some(close + 1);
    }
    let colon = bytes.iter().position(|&byte| byte == b':')?;
    (colon > 0 && !bytes[..colon].contains(&b'/')).then_some(colon)
}

/// User and host of `USER@HOST:/PATH` or `rdma://USER@HOST/PATH`.
fn user_and_host(bytes: &[u8]) -> Option<(String, String)> {
    let rest = bytes.strip_prefix(SCHEME);
    let (place, with_port) = (rest.unwrap_or(bytes), rest.is_some());
    let end = place.iter().position(|byte| b":/".contains(byte)).unwrap_or(place.len());
    if !with_port && place.get(end) != Some(&b':') {
        return None;
    }
    let at = place[..end].iter().rposition(|&byte| byte == b'@')?;
    let (user, host) = (&place[..at], &place[at + 1..]);
    let slash = || host.iter().position(|&byte| byte == b'/').unwrap_or(host.len());
    let end = if with_port { slash() } else { host_end(host).unwrap_or_else(slash) };
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some((text(user), text(&host[..end])))
}

/// The correct spelling for arguments of other tools: `HOST:PORT:/PATH`, `HOST::MODULE`,
/// `FE80::1:/PATH`, `file:///PATH` and `https://HOST`.
fn foreign_syntax_hint(host: &str, path: &[u8]) -> Option<String> {
    if let Some(port) = misplaced_port(path) {
        return Some(format!("a port is written rdma://{}:{port}/EXPORT/PATH", bracket_ipv6(host)));
    }
    let text = match host {
        _ if path.starts_with(b":") => {
            "a server is written HOST:/EXPORT/PATH, with one colon, or [V6]:/EXPORT/PATH; and a \
             file here with a colon in its name ./NAME"
        }
        "file" if path.starts_with(b"//") => "a file here is written as its path alone",
        _ if OTHER_SCHEMES.contains(&host) && path.starts_with(b"//") => {
            "a server is written HOST:/EXPORT/PATH or rdma://HOST/EXPORT/PATH"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// The port in `HOST:PORT:/PATH`.
fn misplaced_port(path: &[u8]) -> Option<u16> {
    let cut = path.iter().position(|&byte| byte == b':')?;
    let port = std::str::from_utf8(&path[..cut]).ok()?.parse().ok()?;
    path[cut..].starts_with(b":/").then_some(port)
}

fn split_authority(authority: &[u8], with_port: bool) -> Result<(String, u16), String> {
    let text = std::str::from_utf8(authority).map_err(|_| "the host is not text".to_owned())?;
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
        match after {
            "" => (host, None),
            _ => (host, Some(after.strip_prefix(':').ok_or("a port is written [HOST]:PORT")?)),
        }
    } else if let Some((host, port)) = text.split_once(':').filter(|_| with_port) {
        (host, Some(port))
    } else {
        (text, None)
    };
    if host.is_empty() {
        return Err("it has no host".into());
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is no port"))?,
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> (String, u16, String) {
        match Location::parse(OsStr::new(text)).expect("parses") {
            Location::Remote(remote) => (remote.host, remote.port, remote.path.to_string()),
            other => panic!("{text} is not remote: {other:?}"),
        }
    }

    #[test]
    fn remote_locations_parse_in_every_spelling() {
        let a = |h: &str, p: u16, path: &str| (h.to_owned(), p, path.to_owned());
        assert_eq!(remote("host7:/data/a.bin"), a("host7", 20490, "data/a.bin"));
        assert_eq!(remote("host7:data/a.bin"), a("host7", 20490, "data/a.bin"));
        assert_eq!(remote("host7:/"), a("host7", 20490, ""));
        assert_eq!(remote("host7:/99:/x"), a("host7", 20490, "99:/x"));
        assert_eq!(remote("host7://data/me@x"), a("host7", 20490, "data/me@x"));
        assert_eq!(remote("host7:me@x:y"), a("host7", 20490, "me@x:y"));
        assert_eq!(remote("rdma://host7/me@x"), a("host7", 20490, "me@x"));
        assert_eq!(remote("[fe80::1]:/data"), a("fe80::1", 20490, "data"));
        assert_eq!(remote("rdma://host7/data/x"), a("host7", 20490, "data/x"));
        assert_eq!(remote("rdma://host7:99/data/x"), a("host7", 99, "data/x"));
        assert_eq!(remote("rdma://[::1]:99/data"), a("::1", 99, "data"));
        assert_eq!(remote("rdma://[::1]/data"), a("::1", 20490, "data"));
    }

    #[test]
    fn a_slash_before_the_colon_makes_a_location_local() {
        assert_eq!(Location::parse(OsStr::new("-")), Ok(Location::Pipe));
        for local in ["a.bin", "me@x", "me@d/x:y", "./a:b", "/a:b", "dir/x:y", ":x", "./-", "-x"] {
            let parsed = Location::parse(OsStr::new(local)).expect("parses");
            assert_eq!(parsed, Location::Local(local.into()));
        }
    }

    #[test]
    fn invalid_locations_report_their_cause() {
        for (bad, why) in [
            ("", "empty"),
            ("rdma:///data", "no host"),
            ("rdma://h:x/data", "no port"),
            ("h:/a/../b", ".."),
            ("rdma://[::1/data", "bracket"),
            ("rdma://[::1]99/data", "[HOST]:PORT"),
            ("h:20777:/data", "rdma://h:20777/EXPORT"),
            ("[::1]:99:/data", "rdma://[::1]:99/EXPORT"),
            ("me@h:/data", "leave me@ out: h identifies users by tokens"),
            ("rdma://me@h/data", "leave me@ out"),
            ("https://h/data", "rdma://HOST/EXPORT/PATH"),
            ("file:///data", "as its path alone"),
            ("h::data/x", "HOST:/EXPORT/PATH, with one colon"),
            ("fe80::1:/data", "[V6]:/EXPORT/PATH"),
            ("me@h:99:/data", "leave me@ out: h identifies"),
            ("me@[fe80::1]:/data", "leave me@ out: [fe80::1] identifies"),
            ("rdma://me@[fe80::1]:99/data", "leave me@ out: [fe80::1]:99 identifies"),
            ("me@site@h:/data", "leave me@site@ out: h identifies"),
        ] {
            let error = Location::parse(OsStr::new(bad)).expect_err(bad).to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_trailing_slash_and_a_trailing_dot_are_parsed() {
        let parse = |text: &str| match Location::parse(OsStr::new(text)).expect("parses") {
            Location::Remote(remote) => (remote.is_folder, remote.contents),
            _ => panic!("local"),
        };
        assert_eq!(parse("h:/data/"), (true, false));
        assert_eq!(parse("h:/data/."), (false, true));
        assert_eq!(parse("h:/data/./"), (true, true));
        assert_eq!(parse("h:/data"), (false, false));
    }
}
