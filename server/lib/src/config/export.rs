//! Exports in the configuration: a folder, its name, its mode, its access rules and the owner
//! of uploads. Owns the command-line form `[NAME=]PATH[:ro|:rw]` and the rules for names, and
//! checks that each path is a folder. It never opens a file below an export and never resolves a
//! client's path. The configuration and the binary call it once, at start.

use crate::config::ConfigError;
use crate::config::cidr::CidrRange;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use verbatim_files::Rules;
use verbatim_proto::Fault;
use verbatim_proto::units::NAME_BYTES_MAX;

/// A folder that clients may use, under the name they know it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The first part of every path a client asks for; empty stands for the folder's last name.
    #[serde(default)]
    pub name: String,
    /// The folder on this machine.
    pub path: PathBuf,
    /// What clients may do in it.
    #[serde(default)]
    pub mode: Mode,
    /// The owner of uploaded files.
    #[serde(default)]
    pub owner: Owner,
    /// Whether files that a client gives to root go to another user.
    #[serde(default = "default_true")]
    pub root_squash: bool,
    /// That user.
    #[serde(default = "nobody_id")]
    pub squash_uid: u32,
    /// Its group.
    #[serde(default = "nobody_id")]
    pub squash_gid: u32,
    /// Whether setuid, setgid and sticky bits may arrive.
    #[serde(default)]
    pub allow_setuid: bool,
    /// Whether `security.*` and `trusted.*` attributes may arrive.
    #[serde(default)]
    pub allow_security_xattrs: bool,
    /// The names of the tokens and keys that may use it; empty is all.
    #[serde(default)]
    pub tokens: Vec<String>,
    /// The names in certificates that may use it, `NAME` or `NAME:ro`; `*` is all of them.
    #[serde(default)]
    pub certificates: Vec<String>,
    /// The addresses of clients that may use it; empty is all.
    #[serde(default)]
    pub addresses: Vec<CidrRange>,
    /// The addresses of RDMA ports that data may move to; empty is all.
    #[serde(default)]
    pub gids: Vec<CidrRange>,
    /// Whether lists leave it out.
    #[serde(default)]
    pub hidden: bool,
    /// Whether its data may move where others can read it.
    #[serde(default)]
    pub encryption: Encryption,
    /// Whether file systems that are mounted in it are part of it.
    #[serde(default = "default_true")]
    pub cross_mounts: bool,
    /// What clients may write into it, in MiB; 0 is no limit.
    #[serde(default)]
    pub quota_mb: u64,
    /// How many files, folders and symbolic links clients may make in it; 0 is no limit.
    #[serde(default)]
    pub quota_files: u64,
}

/// The largest quota, in MiB: an exbibyte.
const QUOTA_MB_MAX: u64 = 1 << 40;

/// The largest quota of files: more than any file system has.
const QUOTA_FILES_MAX: u64 = 1 << 48;

fn default_true() -> bool {
    true
}

/// The user whom systems call nobody, and its group.
fn nobody_id() -> u32 {
    65534
}

impl Export {
    /// Makes an export, and names it after its folder where `name` is empty.
    pub fn new(name: &str, path: &Path, mode: Mode) -> Result<Self, ConfigError> {
        let refuse = |why: String, hint: &str| {
            let export = if name.is_empty() {
                path.display().to_string()
            } else {
                format!("{name}={}", path.display())
            };
            Err(ConfigError::BadExport { export, why, hint: hint.into() })
        };
        if path.as_os_str().is_empty() {
            return refuse("it has no path".into(), "write NAME=PATH, such as data=/srv/data");
        }
        if path.as_os_str().as_bytes().contains(&0) {
            return refuse("its path has a NUL byte in it".into(), "give the folder's real path");
        }
        let name = match name {
            "" => match last_name(path) {
                Some(name) => name,
                None => {
                    let why = "its folder has no name that is UTF-8".into();
                    return refuse(why, "write NAME=PATH, such as data=/");
                }
            },
            name => name.to_owned(),
        };
        match name_error(&name) {
            Some(why) => refuse(format!("its name {why}"), "choose a plain name, such as data"),
            None => Ok(Self {
                name,
                path: path.into(),
                mode,
                owner: Owner::Server,
                root_squash: true,
                squash_uid: nobody_id(),
                squash_gid: nobody_id(),
                allow_setuid: false,
                allow_security_xattrs: false,
                tokens: Vec::new(),
                certificates: Vec::new(),
                addresses: Vec::new(),
                gids: Vec::new(),
                hidden: false,
                encryption: Encryption::Off,
                cross_mounts: true,
                quota_mb: 0,
                quota_files: 0,
            }),
        }
    }

    /// Checks an export as it stands in a file, and names it where it has no name.
    pub fn checked(self) -> Result<Self, ConfigError> {
        let Self { name, .. } = Self::new(&self.name, &self.path, self.mode)?;
        for (key, id) in [("squash_uid", self.squash_uid), ("squash_gid", self.squash_gid)] {
            if id == 0 || id == u32::MAX {
                return Err(ConfigError::BadExport {
                    export: name,
                    why: format!("{key} = {id} is not a user or group to give root's files to"),
                    hint: "set root_squash = false to let clients make files of root".into(),
                });
            }
        }
        let quotas = [
            ("quota_mb", self.quota_mb, QUOTA_MB_MAX),
            ("quota_files", self.quota_files, QUOTA_FILES_MAX),
        ];
        if let Some((key, value, max)) = quotas.into_iter().find(|(_, value, max)| value > max) {
            return Err(ConfigError::BadExport {
                export: name,
                why: format!("{key} = {value} is out of range"),
                hint: format!("it must be from 0, no limit, to {max}"),
            });
        }
        Ok(Self { name, ..self })
    }

    /// Whether it has a quota of bytes or files.
    pub(crate) fn has_quota(&self) -> bool {
        self.quota_mb > 0 || self.quota_files > 0
    }

    /// Which metadata of uploads is applied. Only root can give files away.
    pub fn rules(&self) -> Rules {
        let user = Rules::of_user();
        Rules {
            give_away: user.give_away && self.owner == Owner::Client,
            squash: self.root_squash.then_some((self.squash_uid, self.squash_gid)),
            special_bits: self.allow_setuid,
            privileged_xattrs: self.allow_security_xattrs,
            ..user
        }
    }
}

/// The owner of uploaded files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// The server's user.
    #[default]
    Server,
    /// Whom the client says, where the server is root.
    Client,
}

/// Whether the data of an export may move where others can read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// It may; digests show whether somebody changed it.
    #[default]
    Off,
    /// It moves inside TLS, over TCP, and not at all otherwise.
    Required,
}

/// What clients may do in an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Clients read.
    #[default]
    #[serde(rename = "ro")]
    ReadOnly,
    /// Clients read and write.
    #[serde(rename = "rw")]
    ReadWrite,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        })
    }
}

/// The command-line form of an export: `[NAME=]PATH[:ro|:rw]`.
pub struct ExportSpec;

impl ExportSpec {
    /// Reads an export as it is written on the command line. Only a final `:ro` or `:rw` is a
    /// mode, and a `=` ends the name only if no `/` comes before it; all else is the path.
    pub fn parse(spec: &OsStr, default_mode: Mode) -> Result<Export, ConfigError> {
        let bytes = spec.as_bytes();
        let (rest, mode) = if let Some(rest) = bytes.strip_suffix(b":ro") {
            (rest, Mode::ReadOnly)
        } else if let Some(rest) = bytes.strip_suffix(b":rw") {
            (rest, Mode::ReadWrite)
        } else {
            (bytes, default_mode)
        };
        let separator = rest.iter().position(|byte| matches!(byte, b'=' | b'/'));
        let (name, path) = match separator {
            Some(at) if rest[at] == b'=' => (Some(&rest[..at]), &rest[at + 1..]),
            _ => (None, rest),
        };
        let refuse = |why: &str| ConfigError::BadExport {
            export: spec.display().to_string(),
            why: why.into(),
            hint: "write NAME=PATH, such as data=/srv/data, or ./PATH if it has a = in it".into(),
        };
        let name = match name {
            Some(b"") => return Err(refuse("its name is empty")),
            Some(name) => str::from_utf8(name).map_err(|_| refuse("its name is not UTF-8"))?,
            None => "",
        };
        Export::new(name, Path::new(OsStr::from_bytes(path)), mode)
    }
}

/// Checks that no two exports have one name, and that every path is a folder that is there.
pub fn check_exports(exports: &[Export]) -> Result<(), ConfigError> {
    check_names(exports)?;
    exports.iter().try_for_each(check_folder)
}

/// Checks that no two exports have one name.
pub fn check_names(exports: &[Export]) -> Result<(), ConfigError> {
    let mut paths = BTreeMap::new();
    for Export { name, path, .. } in exports {
        if let Some(first) = paths.insert(name, path) {
            let (first, second) = (first.clone(), path.clone());
            return Err(ConfigError::DuplicateExport { name: name.clone(), first, second });
        }
    }
    Ok(())
}

fn check_folder(export: &Export) -> Result<(), ConfigError> {
    let what = format!("cannot export {} as {}", export.path.display(), export.name);
    let (text, hint) = match std::fs::metadata(&export.path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => (format!("{what}: it is not a folder"), "export the folder it is in"),
        Err(error) => {
            let hint = match error.kind() {
                ErrorKind::NotFound => "create the folder, or correct the path",
                ErrorKind::PermissionDenied => "run the server as a user who may enter it",
                _ => "correct the path, or export another folder",
            };
            (Fault::from_io(what, &error).text, hint)
        }
    };
    Err(ConfigError::NotExportable { text, hint: hint.into() })
}

/// The folder's last name; one that ends in `.` or `..` is looked up.
fn last_name(path: &Path) -> Option<String> {
    let resolved;
    let name = match path.file_name() {
        Some(name) => name,
        None => {
            resolved = path.canonicalize().ok()?;
            resolved.file_name()?
        }
    };
    name.to_str().map(str::to_owned)
}

fn name_error(name: &str) -> Option<String> {
    if name.contains('/') {
        return Some("has a / in it".into());
    }
    if name.contains('\0') {
        return Some("has a NUL byte in it".into());
    }
    if name == "." || name == ".." {
        return Some(format!("is {name}"));
    }
    (name.len() > NAME_BYTES_MAX).then(|| format!("is longer than {NAME_BYTES_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &[u8]) -> Result<Export, ConfigError> {
        ExportSpec::parse(OsStr::from_bytes(spec), Mode::ReadOnly)
    }

    fn export(name: &str, path: impl AsRef<OsStr>, mode: Mode) -> Export {
        Export {
            path: Path::new(&path).into(),
            ..Export::new(name, Path::new("/x"), mode).unwrap()
        }
    }

    #[test]
    fn a_name_and_a_mode_may_be_left_out() {
        use Mode::{ReadOnly, ReadWrite};
        for (spec, name, path, mode) in [
            ("/srv/data", "data", "/srv/data", ReadOnly),
            ("/srv/data/", "data", "/srv/data/", ReadOnly),
            ("data", "data", "data", ReadOnly),
            ("sets=/srv/data", "sets", "/srv/data", ReadOnly),
            ("/srv/data:rw", "data", "/srv/data", ReadWrite),
            ("sets=/srv/data:ro", "sets", "/srv/data", ReadOnly),
            ("all=/", "all", "/", ReadOnly),
            ("all=/:rw", "all", "/", ReadWrite),
        ] {
            assert_eq!(parse(spec.as_bytes()).unwrap(), export(name, path, mode), "{spec}");
        }
        let written = ExportSpec::parse(OsStr::new("/a"), ReadWrite).unwrap();
        assert_eq!(written.mode, ReadWrite, "the default is the caller's");
    }

    #[test]
    fn colons_and_equal_signs_may_be_part_of_the_path() {
        use Mode::{ReadOnly, ReadWrite};
        for (spec, name, path, mode) in [
            ("/srv/a=b", "a=b", "/srv/a=b", ReadOnly),
            ("./a=b:rw", "a=b", "./a=b", ReadWrite),
            ("n=/srv/a=b", "n", "/srv/a=b", ReadOnly),
            ("n=m=k", "n", "m=k", ReadOnly),
            ("/srv/a:b", "a:b", "/srv/a:b", ReadOnly),
            ("/srv/a:ro:rw", "a:ro", "/srv/a:ro", ReadWrite),
            ("/srv/a:RO", "a:RO", "/srv/a:RO", ReadOnly),
            ("a:b=c:d", "a:b", "c:d", ReadOnly),
        ] {
            assert_eq!(parse(spec.as_bytes()).unwrap(), export(name, path, mode), "{spec}");
        }
    }

    #[test]
    fn a_path_that_is_not_utf8_needs_a_name() {
        let path = OsStr::from_bytes(b"/srv/\xff");
        assert_eq!(parse(b"n=/srv/\xff").unwrap(), export("n", path, Mode::ReadOnly));
        let error = parse(b"/srv/\xff").unwrap_err();
        assert!(error.to_string().contains("no name that is UTF-8"), "{error}");
        assert!(error.hint().unwrap().contains("NAME=PATH"));
        assert!(parse(b"\xff=/srv").unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn the_folder_we_are_in_has_a_name() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(parse(b".").unwrap().name, here.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn bad_names_and_paths_are_refused_with_a_hint() {
        let long = [b"x".repeat(256), b"=/srv".to_vec()].concat();
        for (spec, why) in [
            (&b"/"[..], "no name"),
            (b"=/srv", "its name is empty"),
            (b".=/srv", "its name is ."),
            (b"..=/srv", "its name is .."),
            (b"n=", "no path"),
            (b"n=:rw", "no path"),
            (b"", "no path"),
            (b"a\0b=/srv", "NUL"),
            (b"n=/s\0rv", "NUL"),
            (&long, "longer than 255 bytes"),
        ] {
            let error = parse(spec).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.hint().is_some(), "{error}");
        }
        assert!(Export::new("a/b", Path::new("/srv"), Mode::ReadOnly).is_err());
    }

    #[test]
    fn two_exports_with_one_name_are_refused_by_both_paths() {
        let exports = [parse(b"/srv/a/data").unwrap(), parse(b"/srv/b/data").unwrap()];
        let error = check_exports(&exports).unwrap_err();
        let text = r#"two exports have the name "data": /srv/a/data and /srv/b/data"#;
        assert_eq!(error.to_string(), text);
        assert!(error.hint().unwrap().contains("NAME=PATH"));
    }

    #[test]
    fn an_export_must_be_a_folder_that_is_there() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").unwrap();
        let check = |path: &Path| check_exports(&[export("n", path, Mode::ReadOnly)]);
        check(dir.path()).unwrap();
        let error = check(&file).unwrap_err();
        assert!(error.to_string().ends_with("as n: it is not a folder"), "{error}");
        let error = check(&dir.path().join("none")).unwrap_err();
        assert!(error.to_string().ends_with("as n: no such file or directory"), "{error}");
        assert_eq!(error.hint().unwrap(), "create the folder, or correct the path");
    }

    #[test]
    fn root_s_files_are_squashed_to_somebody_who_is_not_root() {
        let plain = parse(b"/srv/data").unwrap();
        assert_eq!(plain.rules().squash, Some((65534, 65534)));
        assert!(!plain.rules().give_away && !plain.rules().special_bits);
        let open = Export { root_squash: false, ..plain.clone() };
        assert_eq!(open.checked().unwrap().rules().squash, None);
        for id in [0, u32::MAX] {
            let error = Export { squash_gid: id, ..plain.clone() }.checked().unwrap_err();
            assert!(error.to_string().contains(&format!("squash_gid = {id}")), "{error}");
            assert!(error.hint().unwrap().contains("root_squash = false"));
        }
        let given = Export { owner: Owner::Client, ..plain };
        let root = rustix::process::geteuid().is_root();
        assert_eq!(given.rules().give_away, root, "only root gives files away");
    }
}
