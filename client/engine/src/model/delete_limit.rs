//! Limits the deletions of a mirror (`--max-delete`): a number of entries, or a percentage of the
//! target's. Pure. A percentage is rounded up, so that a small target can lose one entry.

use std::str::FromStr;
use verbatim_proto::plan::Counts;

/// The most entries that a mirror may delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteLimit {
    /// This number of entries.
    Entries(u64),
    /// This percentage of the entries of the target.
    Percent(u8),
}

impl Default for DeleteLimit {
    fn default() -> Self {
        Self::Percent(10)
    }
}

impl DeleteLimit {
    /// Why the mirror may delete nothing, with a hint; `None` if it may delete.
    pub fn refuses(&self, counts: &Counts) -> Option<String> {
        let Counts { source, target, deletes, faults } = *counts;
        if deletes == 0 {
            return None;
        }
        if faults > 0 {
            return Some(format!("nothing is deleted: {faults} of the source cannot be read"));
        }
        if source == 0 {
            return Some("nothing is deleted: the source is empty".into());
        }
        let most = match self {
            Self::Entries(entries) => *entries,
            Self::Percent(percent) => (target * u64::from(*percent)).div_ceil(100),
        };
        (deletes > most).then(|| {
            format!(
                "nothing is deleted: {deletes} of the {target} at the target are not in the \
                 source, and at most {most} may go; look with -n, then give --max-delete"
            )
        })
    }
}

impl FromStr for DeleteLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a number nor a percentage such as 10%");
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: u8 = percent.parse().map_err(|_| wrong())?;
                if percent > 100 { Err(wrong()) } else { Ok(Self::Percent(percent)) }
            }
            None => text.parse().map(Self::Entries).map_err(|_| wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_a_percentage() {
        let refuses = |limit: &str, source, target, deletes, faults| {
            let limit: DeleteLimit = limit.parse().expect("a limit");
            limit.refuses(&Counts { source, target, deletes, faults }).is_some()
        };
        assert!(!refuses("10%", 5, 5, 1, 0), "one of five: a tenth, rounded up");
        assert!(refuses("10%", 5, 10, 2, 0));
        assert!(!refuses("2", 5, 10, 2, 0) && refuses("1", 5, 10, 2, 0));
        assert!(!refuses("100%", 5, 10, 10, 0) && refuses("0", 5, 10, 1, 0));
        assert!(refuses("100%", 0, 10, 10, 0), "an empty source");
        assert!(refuses("100%", 5, 10, 1, 1), "a source that cannot be read");
        assert!(!refuses("0", 0, 10, 0, 1), "there is nothing to delete");
        for wrong in ["", "-1", "101%", "ten", "1.5%"] {
            assert!(wrong.parse::<DeleteLimit>().is_err(), "{wrong}");
        }
    }
}
