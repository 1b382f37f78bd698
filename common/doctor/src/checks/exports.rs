//! Checks of folders that are exported: room, file system, how their files are
//! offered. And what could not be looked at at all.

use super::{Case, shown};
use crate::facts::{ExportFacts, ReadPath};
use crate::finding::{Finding, Fix, Severity};

/// A file system that has less free than one part in so many is nearly full.
const FULL_RATIO: u64 = 20;

/// File systems whose pages cannot be pinned, or whose changes are not seen.
const REMOTE: &[&str] = &["nfs", "nfs4", "cifs", "smb3", "fuse", "fuse.sshfs", "9p", "ceph"];

pub(super) fn check(case: &Case<'_>, found: &mut Vec<Finding>) {
    for export in &case.facts.exports {
        found.extend(unreadable(export));
        found.extend(full(export));
        found.extend(read_path(export));
        found.extend(network(export));
    }
    found.extend(case.facts.denied.iter().map(|path| denied(path)));
    found.extend(case.facts.silent.iter().map(|what| silent(what)));
}

fn about(export: &ExportFacts) -> String {
    export.path.display().to_string()
}

fn unreadable(export: &ExportFacts) -> Option<Finding> {
    let error = export.error.clone()?;
    Some(Finding {
        check: "export",
        severity: Severity::Limits,
        about: about(export),
        is: format!("it cannot be looked at: {error}"),
        should: "a folder that the server may read".into(),
        why: "clients get errors for everything in it".into(),
        fix: Fix::Person("see that it is mounted, and its owner and mode".into()),
    })
}

fn full(export: &ExportFacts) -> Option<Finding> {
    let ExportFacts { free_bytes, size_bytes, error, .. } = export;
    if error.is_some() || *size_bytes == 0 || *free_bytes >= size_bytes / FULL_RATIO {
        return None;
    }
    Some(Finding {
        check: "space",
        severity: Severity::Limits,
        about: about(export),
        is: format!("{} of {} are free", shown(*free_bytes), shown(*size_bytes)),
        should: format!("one part in {FULL_RATIO} at least"),
        why: "uploads are refused when there is no room, and full file systems are slow".into(),
        fix: Fix::Person("make room in it".into()),
    })
}

fn read_path(export: &ExportFacts) -> Option<Finding> {
    let Some(ReadPath::Staged(reason)) = &export.read_path else { return None };
    Some(Finding {
        check: "readpath",
        severity: Severity::Limits,
        about: about(export),
        is: format!("its files cannot be registered as they are: {reason}"),
        should: "a kernel from 6.2 on, and a file system with pages to pin (ext4, xfs, tmpfs)"
            .into(),
        why: "files are copied into registered memory first, which costs the server a core".into(),
        fix: Fix::Person("use a newer kernel, or another file system for it".into()),
    })
}

fn network(export: &ExportFacts) -> Option<Finding> {
    REMOTE.contains(&export.file_system.as_str()).then(|| Finding {
        check: "filesystem",
        severity: Severity::Note,
        about: about(export),
        is: format!("it is on a network or user-space file system ({})", export.file_system),
        should: "a local file system".into(),
        why: "data crosses two networks, and changes that other machines make are seen late".into(),
        fix: Fix::Person("run rdma-serve where the disks are".into()),
    })
}

fn denied(path: &str) -> Finding {
    Finding {
        check: "permission",
        severity: Severity::Note,
        about: path.to_owned(),
        is: "it may not be read by this user".into(),
        should: "readable".into(),
        why: "what it says is not part of this report".into(),
        fix: Fix::Run("sudo rdma-doctor".into()),
    }
}

fn silent(what: &str) -> Finding {
    Finding {
        check: "silent",
        severity: Severity::Limits,
        about: what.to_owned(),
        is: "it did not answer in time".into(),
        should: "an answer within seconds".into(),
        why: "a driver or a file system hangs, and so would a copy".into(),
        fix: Fix::Person("see dmesg for the device or the mount".into()),
    }
}
