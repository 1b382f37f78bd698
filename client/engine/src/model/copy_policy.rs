//! The flags of a copy as a policy: dry run or verify, replace or skip, excludes. Pure: a rule gets
//! the entries of both ends and decides. A session applies the policy to every entry of every tree.

use crate::model::report::SkipReason;
use verbatim_files::Over;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Excludes, Fault, Resolution, WirePath};

/// The policy of one copy.
#[derive(Clone, Debug, Default)]
pub struct CopyPolicy {
    /// Whether the copy transfers, reports or verifies.
    pub task: Task,
    /// Which existing targets the copy replaces.
    pub replace: Replace,
    /// Patterns of the entries to leave out.
    pub exclude: Excludes,
    /// Whether the copy follows symbolic links in trees.
    pub follow: bool,
    /// Whether a file in the place of a source folder is removed.
    pub force: bool,
    /// The resolution of timestamps at the target. Not a flag: the copy finds it before it begins.
    pub resolution: Resolution,
}

/// Whether a copy transfers, reports or verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Transfers the files.
    #[default]
    Copy,
    /// Reports the files and transfers nothing.
    DryRun,
    /// Compares the files with those at the target.
    Verify,
}

/// Which existing targets a copy replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// All of them.
    #[default]
    Always,
    /// None of them.
    Never,
    /// Those with an older modification time than the source.
    Older,
}

impl CopyPolicy {
    /// Whether the copy must stat a target before it writes there.
    pub fn must_stat_target(&self) -> bool {
        self.replace != Replace::Always
    }

    /// Whether the excludes match a named source, as they match entries of a tree.
    pub fn excludes_source(&self, name: Option<&[u8]>, kind: &EntryKind) -> Result<bool, Fault> {
        let path = name.and_then(|name| WirePath::parse(name).ok());
        path.map_or(Ok(false), |path| self.exclude.excludes(&path, *kind == EntryKind::Folder))
    }

    /// What the commit of a file or link may overwrite. Another process may have created the target
    /// since the copy looked at it.
    pub fn overwrite(&self) -> Over {
        match self.replace {
            Replace::Never => Over::Nothing,
            Replace::Always | Replace::Older => Over::Anything,
        }
    }

    /// Why the copy skips a file or link, given the entry at the target. An equal time counts as
    /// newer: a copy that preserves times leaves it so, within the target's resolution.
    pub fn skip(&self, there: Option<&Entry>, source_mtime_ns: i64) -> Option<SkipReason> {
        let there = there?;
        match self.replace {
            Replace::Always => None,
            Replace::Never => Some(SkipReason::Exists),
            Replace::Older => {
                let is_kept = self.resolution.is_kept(source_mtime_ns, there.mtime_ns);
                (is_kept || there.mtime_ns >= source_mtime_ns).then_some(SkipReason::AsNew)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::WirePath;
    use verbatim_proto::message::EntryKind;

    #[test]
    fn existing_targets_are_replaced_or_skipped_by_the_policy() {
        let there = |mtime_ns| {
            let (path, kind) = (WirePath::root(), EntryKind::File);
            Some(Entry { path, kind, size: 0, mode: 0, mtime_ns, meta: None })
        };
        let policy = |replace| CopyPolicy { replace, ..CopyPolicy::default() };
        let skip = |replace, there: Option<Entry>| policy(replace).skip(there.as_ref(), 5);
        for replace in [Replace::Always, Replace::Never, Replace::Older] {
            assert_eq!(skip(replace, None), None, "what is missing is copied");
            assert_eq!(policy(replace).must_stat_target(), replace != Replace::Always);
            let over = if replace == Replace::Never { Over::Nothing } else { Over::Anything };
            assert_eq!(policy(replace).overwrite(), over);
        }
        assert_eq!(skip(Replace::Always, there(9)), None);
        assert_eq!(skip(Replace::Never, there(1)), Some(SkipReason::Exists));
        assert_eq!(skip(Replace::Older, there(4)), None);
        assert_eq!(skip(Replace::Older, there(5)), Some(SkipReason::AsNew));
        assert_eq!(skip(Replace::Older, there(6)), Some(SkipReason::AsNew));
    }

    #[test]
    fn times_are_compared_at_the_resolution_of_the_target() {
        let there = |mtime_ns| {
            let (path, kind) = (WirePath::root(), EntryKind::File);
            Entry { path, kind, size: 0, mode: 0, mtime_ns, meta: None }
        };
        let replace = Replace::Older;
        let policy =
            CopyPolicy { replace, resolution: Resolution::Second, ..CopyPolicy::default() };
        let skip = |mtime_ns| policy.skip(Some(&there(mtime_ns)), 5_999_999_999);
        assert_eq!(skip(4_000_000_000), None);
        assert_eq!(skip(5_000_000_000), Some(SkipReason::AsNew));
        assert_eq!(skip(6_000_000_000), Some(SkipReason::AsNew));
        assert_eq!(skip(5_999_999_998), None, "what is mounted there keeps more");
        let fine = CopyPolicy { replace, ..CopyPolicy::default() };
        assert_eq!(fine.skip(Some(&there(5_000_000_000)), 5_999_999_999), None);
    }
}
