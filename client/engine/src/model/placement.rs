//! What goes where, by the rules of cp: into a folder that is there, else under
//! the name that was given. Pure: it is told what the target is, and decides.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault, WirePath};

/// What is at the target now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Nothing.
    Missing,
    /// A folder.
    Folder,
    /// A file, or anything else that is no folder.
    File,
}

/// What the user asked for.
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    /// How many sources there are.
    pub sources: usize,
    /// Whether folders may be copied.
    pub recursive: bool,
    /// Whether the target was written with a slash at its end.
    pub target_is_folder: bool,
}

/// Where one source goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into the target folder, under the source's own name.
    Inside,
    /// Under the target's own name.
    AsTarget,
}

impl Placement {
    /// Where on this machine a source of this name goes.
    pub fn below(self, target: &Path, name: &[u8]) -> PathBuf {
        match self {
            Self::Inside => target.join(OsStr::from_bytes(name)),
            Self::AsTarget => target.to_owned(),
        }
    }
}

/// Why a copy cannot begin: cause and hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong.
    pub cause: &'static str,
    /// What to do.
    pub hint: Option<&'static str>,
}

/// Checks what the user asked for against what the target is, for all sources at once.
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

/// Whether a source stands for what is in a folder, not for the folder: where its last name is
/// `.` or `..`, which it would not be told by, or where it has none.
pub fn is_contents(source: &[u8]) -> bool {
    let mut names = source.rsplit(|&byte| byte == b'/').filter(|name| !name.is_empty());
    matches!(names.next(), None | Some(b"." | b".."))
}

/// Decides where one source goes. `contents` is for a source that stands for what is in it.
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

/// The names that sources have in the target.
#[derive(Default)]
pub struct TargetNames(HashMap<WirePath, String>);

impl TargetNames {
    /// Takes a name for a source; whether it is new, and not the same source named twice. Two of
    /// one name would be copied over each other, and only one of them would be left: folders too,
    /// which cp would merge, because what is in both would be of one of them.
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
    fn a_source_without_a_name_of_its_own_stands_for_what_is_in_it() {
        // As cp does it.
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
    fn several_sources_need_a_folder_and_so_does_a_slash() {
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
    fn folders_need_the_flag_and_special_files_are_refused() {
        let plain = CopyArgs { recursive: false, ..ONE };
        let refusal = place(plain, TargetKind::Missing, &EntryKind::Folder, false);
        assert_eq!(refusal.expect_err("refused").hint, Some("copy folders with -r"));
        assert!(place(ONE, TargetKind::Missing, &EntryKind::Special, false).is_err());
    }
}
