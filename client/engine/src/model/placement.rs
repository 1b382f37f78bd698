//! Chooses the target path of each source by the rules of cp: inside an existing folder, else under
//! the given name. Pure: the caller stats the target.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault, WirePath};

/// The kind of entry at the target path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// No entry.
    Missing,
    /// A folder.
    Folder,
    /// A file, or anything else but a folder.
    File,
}

/// The arguments of a copy that decide the placement.
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    /// The number of sources.
    pub sources: usize,
    /// Whether the copy includes folders (`-r`).
    pub recursive: bool,
    /// Whether the target argument ends with a slash.
    pub target_is_folder: bool,
}

/// Where one source is copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into the target folder, under the source's own name.
    Inside,
    /// Under the target's own name.
    AsTarget,
}

impl Placement {
    /// The target path of a source with this name.
    pub fn below(self, target: &Path, name: &[u8]) -> PathBuf {
        match self {
            Self::Inside => target.join(OsStr::from_bytes(name)),
            Self::AsTarget => target.to_owned(),
        }
    }
}

/// Why a copy cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The cause.
    pub cause: &'static str,
    /// The next step for the user.
    pub hint: Option<&'static str>,
}

/// Checks the arguments of a copy against the kind of its target.
pub fn check_target(request: CopyArgs, target: TargetKind) -> Result<(), Refusal> {
    let must_be_folder = request.sources > 1 || request.target_is_folder;
    let refuse = |cause| Err(Refusal { cause, hint: None });
    match target {
        TargetKind::Folder => Ok(()),
        TargetKind::File if must_be_folder => refuse("the target is not a folder"),
        TargetKind::Missing if must_be_folder => Err(Refusal {
            cause: "the target folder does not exist",
            hint: Some("make the folder first, or copy one thing to a new name"),
        }),
        TargetKind::File | TargetKind::Missing => Ok(()),
    }
}

/// Whether a source stands for the contents of a folder: its last name is `.` or `..`, or it has
/// none.
pub fn is_contents(source: &[u8]) -> bool {
    let mut names = source.rsplit(|&byte| byte == b'/').filter(|name| !name.is_empty());
    matches!(names.next(), None | Some(b"." | b".."))
}

/// Chooses the placement of one source. `contents` says that it stands for the contents of a
/// folder.
pub fn place(
    request: CopyArgs,
    target: TargetKind,
    source: &EntryKind,
    contents: bool,
) -> Result<Placement, Refusal> {
    match source {
        EntryKind::Folder if !request.recursive => {
            Err(Refusal { cause: "it is a folder", hint: Some("copy folders with -r") })
        }
        EntryKind::Folder if target == TargetKind::File => {
            Err(Refusal { cause: "a file is where the folder would go", hint: None })
        }
        EntryKind::Special => Err(Refusal { cause: "it is not a regular file", hint: None }),
        EntryKind::Folder if contents => Ok(Placement::AsTarget),
        _ if target == TargetKind::Folder => Ok(Placement::Inside),
        _ => Ok(Placement::AsTarget),
    }
}

/// The names that the sources take in the target folder.
#[derive(Default)]
pub struct TargetNames(HashMap<WirePath, String>);

impl TargetNames {
    /// Claims a name for a source. Returns false if the same source claimed it before, and an error
    /// if another one did: the second copy would overwrite the first. Folders of one name are
    /// refused too. cp merges them, but then equal names inside would overwrite each other.
    pub fn claim(&mut self, name: &WirePath, source: &str) -> Result<bool, Fault> {
        match self.0.insert(name.clone(), source.to_owned()) {
            None => Ok(true),
            Some(first) if first == source => Ok(false),
            Some(first) => {
                let text =
                    format!("{first} is copied to {name} too; copy them into different folders");
                self.0.insert(name.clone(), first);
                Err(Fault::new(Code::BadPath, text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: CopyArgs = CopyArgs { sources: 1, recursive: true, target_is_folder: false };

    #[test]
    fn a_source_goes_into_a_folder_or_takes_a_new_name() {
        let file = &EntryKind::File;
        assert_eq!(place(ONE, TargetKind::Folder, file, false), Ok(Placement::Inside));
        assert_eq!(place(ONE, TargetKind::Missing, file, false), Ok(Placement::AsTarget));
        assert_eq!(place(ONE, TargetKind::File, file, false), Ok(Placement::AsTarget));
        let folder = &EntryKind::Folder;
        assert_eq!(place(ONE, TargetKind::Folder, folder, false), Ok(Placement::Inside));
        assert_eq!(place(ONE, TargetKind::Folder, folder, true), Ok(Placement::AsTarget));
        assert_eq!(place(ONE, TargetKind::Missing, folder, false), Ok(Placement::AsTarget));
        assert!(place(ONE, TargetKind::File, folder, false).is_err());
    }

    #[test]
    fn a_source_without_a_name_stands_for_the_contents_of_its_folder() {
        // cp reads these the same way.
        for contents in
            [".", "./", "..", "../", "../.", "a/.", "a/./", "a//.", "a/..", "/", "a/..//"]
        {
            assert!(is_contents(contents.as_bytes()), "{contents}");
        }
        for named in ["a", "a/", "./a", "../a/", "a/...", "a/.b", "a./", "/a"] {
            assert!(!is_contents(named.as_bytes()), "{named}");
        }
    }

    #[test]
    fn several_sources_or_a_slash_need_a_target_folder() {
        let several = CopyArgs { sources: 2, ..ONE };
        let slash = CopyArgs { target_is_folder: true, ..ONE };
        for request in [several, slash] {
            assert!(check_target(request, TargetKind::Folder).is_ok());
            assert!(check_target(request, TargetKind::Missing).is_err());
            assert!(check_target(request, TargetKind::File).is_err());
        }
        assert!(check_target(ONE, TargetKind::Missing).is_ok());
    }

    #[test]
    fn folders_need_recursive_and_special_files_are_refused() {
        let plain = CopyArgs { recursive: false, ..ONE };
        let refusal = place(plain, TargetKind::Missing, &EntryKind::Folder, false);
        assert_eq!(refusal.expect_err("refused").hint, Some("copy folders with -r"));
        assert!(place(ONE, TargetKind::Missing, &EntryKind::Special, false).is_err());
    }
}
