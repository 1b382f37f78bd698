//! What of the sources is copied, and what is done with it: the flags of a
//! copy as rules. Pure: a rule is told what is at both ends, and decides. The
//! session obeys them for every entry of every tree.

use crate::model::report::SkipReason;
use verbatim_files::Over;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Excludes, Fault, Resolution, WirePath};

/// The rules of one copy.
#[derive(Clone, Debug, Default)]
pub struct CopyPolicy {
    /// What is done with what is found.
    pub task: Task,
    /// Which targets are replaced.
    pub replace: Replace,
    /// What is left out.
    pub exclude: Excludes,
    /// Whether links in trees are copied as what they lead to.
    pub follow: bool,
    /// Whether a file that is where a folder goes is removed.
    pub force: bool,
    /// How finely the target keeps times. No flag: a copy looks before it begins.
    pub resolution: Resolution,
}

/// What is done with what is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// It is copied.
    #[default]
    Copy,
    /// It is told of, and nothing else.
    DryRun,
    /// It is compared with the target.
    Verify,
}

/// Which targets are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// All.
    #[default]
    Always,
    /// None.
    Never,
    /// Those whose content is older than the source's.
    Older,
}

impl CopyPolicy {
    /// Whether it matters what is at a target before it is written.
    pub fn must_stat_target(&self) -> bool {
        self.replace != Replace::Always
    }

    /// Whether a source is left out by its own name, as what is in a tree is.
    pub fn excludes_source(&self, name: Option<&[u8]>, kind: &EntryKind) -> Result<bool, Fault> {
        let path = name.and_then(|name| WirePath::parse(name).ok());
        path.map_or(Ok(false), |path| self.exclude.excludes(&path, *kind == EntryKind::Folder))
    }

    /// What a file or link may take the place of when it is whole. Somebody may have come first
    /// since it was looked whether anything is there.
    pub fn overwrite(&self) -> Over {
        match self.replace {
            Replace::Never => Over::Nothing,
            Replace::Always | Replace::Older => Over::Anything,
        }
    }

    /// Why a file or link is not copied over what is there, if it is not. A target that is
    /// exactly as new is as good as a newer one: that is what a copy that keeps times leaves, as
    /// far as the target keeps them.
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
    fn what_is_there_is_kept_as_the_rule_says() {
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
    fn a_target_is_as_new_when_it_has_what_it_can_keep_of_the_time() {
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
