//! How finely a file system keeps times, and what of a time it keeps: so that what a
//! target cannot keep is no difference. Pure; used where times of two sides are
//! compared. It is one of the `Habits` of a file system.

use serde::{Deserialize, Serialize};

/// How finely a file system keeps the times of its files, the finest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolution {
    /// All of a time, as far as is known.
    #[default]
    Nanosecond,
    /// NTFS, and what is reached over SMB.
    HundredNanoseconds,
    /// Some file systems in user space.
    Microsecond,
    /// The same.
    Millisecond,
    /// exFAT.
    TenMilliseconds,
    /// Lustre, ext4 with inodes of 128 bytes, SFTP.
    Second,
    /// FAT.
    TwoSeconds,
}

impl Resolution {
    /// All of them, the finest first.
    pub const ALL: [Self; 7] = [
        Self::Nanosecond,
        Self::HundredNanoseconds,
        Self::Microsecond,
        Self::Millisecond,
        Self::TenMilliseconds,
        Self::Second,
        Self::TwoSeconds,
    ];

    /// A time of which each of them keeps another part, in nanoseconds since 1970: that of a
    /// file by which it is found out. Every file system has that year.
    pub const TRIED_NS: i64 = 1_000_000_001_123_456_789;

    const fn ns(self) -> i64 {
        match self {
            Self::Nanosecond => 1,
            Self::HundredNanoseconds => 100,
            Self::Microsecond => 1_000,
            Self::Millisecond => 1_000_000,
            Self::TenMilliseconds => 10_000_000,
            Self::Second => 1_000_000_000,
            Self::TwoSeconds => 2_000_000_000,
        }
    }

    /// What is kept of a time: what is too fine is cut off, toward the past, as kernels do.
    pub fn cut(self, time_ns: i64) -> i64 {
        time_ns.saturating_sub(time_ns.rem_euclid(self.ns()))
    }

    /// Whether a file system that keeps times like this may have `kept` of a source's time. One
    /// that is the same is always right: what is mounted below may keep more.
    pub fn is_kept(self, source_ns: i64, kept_ns: i64) -> bool {
        source_ns == kept_ns || self.cut(source_ns) == kept_ns
    }

    /// By what became of `TRIED_NS`; all of a time where that is something else.
    pub fn of_tried(kept_ns: i64) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.cut(Self::TRIED_NS) == kept_ns).unwrap_or_default()
    }

    /// By times that the file system made itself: the coarsest that all of them may be of. Not two
    /// seconds, because of seconds half are even; and nothing is learnt of no time.
    pub fn of_seen(stamps_ns: impl IntoIterator<Item = i64>) -> Self {
        let mut seen = None;
        for stamp_ns in stamps_ns.into_iter().filter(|&ns| ns != 0) {
            let most_ns = seen.unwrap_or(Self::Second).ns();
            let mut coarsest = Self::ALL.into_iter().rev();
            seen = coarsest.find(|it| it.ns() <= most_ns && it.cut(stamp_ns) == stamp_ns);
        }
        seen.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an odd second, with no zero at its end.
    const TIME_NS: i64 = 1_234_567_891_987_654_321;

    #[test]
    fn a_time_is_cut_toward_the_past_and_stays_so() {
        let kept = [
            1_234_567_891_987_654_321,
            1_234_567_891_987_654_300,
            1_234_567_891_987_654_000,
            1_234_567_891_987_000_000,
            1_234_567_891_980_000_000,
            1_234_567_891_000_000_000,
            1_234_567_890_000_000_000,
        ];
        for (of, kept) in Resolution::ALL.into_iter().zip(kept) {
            assert_eq!(of.cut(TIME_NS), kept, "{of:?}");
            assert_eq!(of.cut(kept), kept, "{of:?}: what is kept once stays");
            assert!(of.is_kept(TIME_NS, kept) && of.is_kept(kept, kept), "{of:?}");
            assert!(of.is_kept(TIME_NS, TIME_NS), "{of:?}: what is mounted below may keep more");
            assert!(!of.is_kept(TIME_NS, kept + 1) || kept + 1 == TIME_NS, "{of:?}");
            assert!(!of.is_kept(TIME_NS, kept - of.ns()), "{of:?}");
            assert!(!of.is_kept(kept, TIME_NS) || kept == TIME_NS, "{of:?}: it is the other's");
        }
        // Before 1970 the past is the other way; and there is an end to it.
        assert_eq!(Resolution::Second.cut(-1), -1_000_000_000);
        assert_eq!(Resolution::TwoSeconds.cut(-2_000_000_001), -4_000_000_000);
        assert_eq!(Resolution::TwoSeconds.cut(i64::MIN), i64::MIN);
    }

    #[test]
    fn what_became_of_a_time_says_how_it_was_kept() {
        for of in Resolution::ALL {
            assert_eq!(Resolution::of_tried(of.cut(Resolution::TRIED_NS)), of);
        }
        // Rounded up, or another time altogether: nothing is known, so all has to be the same.
        for other in [0, 1_000_000_002_000_000_000, Resolution::TRIED_NS + 1] {
            assert_eq!(Resolution::of_tried(other), Resolution::Nanosecond);
        }
    }

    #[test]
    fn times_that_a_file_system_made_say_how_it_keeps_them() {
        let whole = [5_000_000_000, 8_000_000_000];
        assert_eq!(Resolution::of_seen(whole), Resolution::Second);
        assert_eq!(Resolution::of_seen([8_000_000_000]), Resolution::Second, "even by chance");
        let one_is_finer = [5_000_000_000, 5_000_000_100, 8_000_000_000];
        assert_eq!(Resolution::of_seen(one_is_finer), Resolution::HundredNanoseconds);
        assert_eq!(Resolution::of_seen([5_010_000_000]), Resolution::TenMilliseconds);
        assert_eq!(Resolution::of_seen([5_010_000_001, 9_000_000_000]), Resolution::Nanosecond);
        assert_eq!(Resolution::of_seen([0, 0]), Resolution::Nanosecond, "those are no times");
        assert_eq!(Resolution::of_seen([]), Resolution::Nanosecond);
    }
}
