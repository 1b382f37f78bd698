//! Chooses the rail of the next link, from the links on each rail and the rails that back off after
//! a failure. Work follows links, so links are spread by the weights of the rails. A failed rail
//! backs off, longer each time, and is then retried; links move back one by one. Pure: `transport`
//! and `links` connect and read the clock.

use std::collections::BTreeMap;
use std::time::Duration;
use verbatim_proto::message::LinkId;

/// The first backoff of a rail that worked before, doubled with each failure.
const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// The longest backoff, and that of a rail that never worked.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The end of the backoff of a forbidden rail.
const NEVER: Duration = Duration::MAX;

/// The rails of a session.
#[derive(Debug, Default)]
pub(crate) struct PortScheduler {
    rails: Vec<Rail>,
    links: BTreeMap<LinkId, usize>,
    /// Whether a rail was restored, so that links may have to move.
    unbalanced: bool,
}

#[derive(Clone, Debug, Default)]
struct Rail {
    weight: u64,
    /// Losses in a row, without a chunk in between.
    losses: usize,
    /// Failures since the rail last carried a chunk.
    failures: u32,
    worked: bool,
    retry_at: Option<Duration>,
}

impl PortScheduler {
    /// A scheduler for rails of these weights.
    pub fn new(weights: impl IntoIterator<Item = u64>) -> Self {
        let rail = |weight: u64| Rail { weight: weight.max(1), ..Rail::default() };
        let rails = weights.into_iter().map(rail).collect();
        Self { rails, links: BTreeMap::new(), unbalanced: false }
    }

    /// The rail for one more link: the one with the fewest links for its weight, among those that
    /// do not back off. The first of equals.
    pub fn pick(&self) -> Option<usize> {
        let usable = (0..self.rails.len()).filter(|&rail| self.rails[rail].retry_at.is_none());
        usable.min_by(|&a, &b| self.load(a, 1).total_cmp(&self.load(b, 1)))
    }

    /// Assigns a link that is up or connecting to a rail.
    pub fn assign(&mut self, link: LinkId, rail: usize) {
        self.links.insert(link, rail);
    }

    /// The rail of a link; `None` for a TCP link.
    pub fn rail_of(&self, link: LinkId) -> Option<usize> {
        self.links.get(&link).copied()
    }

    /// Removes a link. Returns the rail that it was on.
    pub fn remove(&mut self, link: LinkId) -> Option<usize> {
        self.links.remove(&link)
    }

    /// Notes that a link was proven: its rail works.
    pub fn proven(&mut self, link: LinkId) {
        if let Some(&rail) = self.links.get(&link) {
            self.rails[rail].worked = true;
        }
    }

    /// Notes that a link carried a chunk.
    pub fn carried(&mut self, link: LinkId) {
        if let Some(&rail) = self.links.get(&link) {
            let rail = &mut self.rails[rail];
            (rail.losses, rail.failures) = (0, 0);
        }
    }

    /// Counts a lost link of a rail. Returns whether the rail has lost too many.
    pub fn lost(&mut self, rail: usize, losses_max: usize) -> bool {
        self.rails[rail].losses += 1;
        self.rails[rail].losses > losses_max
    }

    /// Starts the backoff of a failed rail.
    pub fn back_off(&mut self, rail: usize, now: Duration) {
        let state = &mut self.rails[rail];
        if state.retry_at == Some(NEVER) {
            return;
        }
        let doubled = BACKOFF_MIN.saturating_mul(1 << state.failures.min(16));
        let rest = if state.worked { doubled.min(BACKOFF_MAX) } else { BACKOFF_MAX };
        state.retry_at = Some(now + rest);
        state.failures += 1;
        state.losses = 0;
    }

    /// Forbids a rail for the rest of the session.
    pub fn forbid(&mut self, rail: usize) {
        self.rails[rail].retry_at = Some(NEVER);
    }

    /// A rail whose backoff has expired.
    pub fn due_for_retry(&self, now: Duration) -> Option<usize> {
        self.rails.iter().position(|rail| rail.retry_at.is_some_and(|until| until <= now))
    }

    /// Ends the backoff of a rail whose retry succeeded.
    pub fn restore(&mut self, rail: usize) {
        self.rails[rail].retry_at = None;
        self.unbalanced = true;
    }

    /// A link that should move: first one without a rail, then one of the fullest rail, if that
    /// makes the rails more even.
    pub fn misplaced(&mut self, up: impl Iterator<Item = LinkId>) -> Option<LinkId> {
        if !self.unbalanced {
            return None;
        }
        let found = self.find_misplaced(up);
        self.unbalanced = found.is_some();
        found
    }

    fn find_misplaced(&self, up: impl Iterator<Item = LinkId>) -> Option<LinkId> {
        let to = self.pick()?;
        let mut fullest: Option<(f64, LinkId)> = None;
        for link in up {
            let Some(rail) = self.rail_of(link) else { return Some(link) };
            let load = self.load(rail, 0);
            if fullest.is_none_or(|(most, _)| load > most) {
                fullest = Some((load, link));
            }
        }
        fullest.filter(|(load, _)| *load > self.load(to, 1)).map(|(_, link)| link)
    }

    /// The links of a rail, plus `more`, divided by its weight.
    fn load(&self, rail: usize, more: usize) -> f64 {
        let links = self.links.values().filter(|&&it| it == rail).count() + more;
        links as f64 / self.rails[rail].weight as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u16) -> LinkId {
        LinkId { index, epoch: 0 }
    }

    fn filled(weights: &[u64], links: u16) -> PortScheduler {
        let mut rails = PortScheduler::new(weights.iter().copied());
        for index in 0..links {
            let rail = rails.pick().expect("one is awake");
            rails.assign(link(index), rail);
        }
        rails
    }

    fn counts(rails: &PortScheduler) -> Vec<usize> {
        let count = |rail| rails.links.values().filter(|&&it| it == rail).count();
        (0..rails.rails.len()).map(count).collect()
    }

    #[test]
    fn links_are_spread_by_weight() {
        assert_eq!(counts(&filled(&[400, 400], 4)), [2, 2]);
        assert_eq!(counts(&filled(&[400, 100], 5)), [4, 1]);
        assert_eq!(counts(&filled(&[0, 0, 0], 7)), [3, 2, 2]);
        assert_eq!(counts(&filled(&[100, 400], 1)), [0, 1], "the first goes to the heavier");
    }

    #[test]
    fn a_failing_rail_backs_off_longer_each_time_until_it_works() {
        let mut rails = filled(&[1, 1], 2);
        let at = Duration::from_secs;
        rails.proven(link(1));
        rails.back_off(1, at(10));
        assert_eq!((rails.pick(), rails.due_for_retry(at(10))), (Some(0), None));
        assert_eq!(rails.due_for_retry(at(10) + BACKOFF_MIN), Some(1));
        rails.restore(1);
        rails.back_off(1, at(20));
        assert_eq!(rails.due_for_retry(at(20) + BACKOFF_MIN), None, "it rests longer");
        assert_eq!(rails.due_for_retry(at(20) + 2 * BACKOFF_MIN), Some(1));
        rails.restore(1);
        rails.carried(link(1));
        rails.back_off(1, at(30));
        assert_eq!(
            rails.due_for_retry(at(30) + BACKOFF_MIN),
            Some(1),
            "it worked, and begins anew"
        );
        rails.back_off(0, at(30));
        assert_eq!(rails.pick(), None, "both rest");
        assert_eq!(rails.due_for_retry(at(40)), Some(1), "one that never worked rests long");
        rails.restore(0);
        for _ in 0..20 {
            rails.back_off(1, at(50));
        }
        assert_eq!(
            rails.due_for_retry(at(50) + BACKOFF_MAX),
            Some(1),
            "no rest is longer than the longest"
        );
    }

    #[test]
    fn a_forbidden_rail_is_never_retried() {
        let mut rails = filled(&[1, 1], 2);
        rails.proven(link(1));
        rails.forbid(1);
        assert_eq!(rails.pick(), Some(0));
        rails.back_off(1, Duration::ZERO);
        assert_eq!(
            rails.due_for_retry(Duration::from_secs(1 << 40)),
            None,
            "a failure is no pardon"
        );
        rails.back_off(0, Duration::ZERO);
        assert_eq!(rails.pick(), None, "and nobody takes its place");
    }

    #[test]
    fn a_rail_backs_off_only_after_several_losses_in_a_row() {
        let mut rails = filled(&[1], 1);
        assert!(!rails.lost(0, 2) && !rails.lost(0, 2));
        rails.carried(link(0));
        assert!(!rails.lost(0, 2) && !rails.lost(0, 2) && rails.lost(0, 2));
        rails.back_off(0, Duration::ZERO);
        rails.restore(0);
        assert!(!rails.lost(0, 2) && !rails.lost(0, 2), "after its rest they are counted anew");
    }

    #[test]
    fn tcp_links_return_first_and_then_rails_even_out() {
        let mut rails = filled(&[1, 1], 4);
        let up = || (0..4).map(link);
        assert_eq!(rails.misplaced(up()), None, "nothing happened");
        rails.back_off(1, Duration::ZERO);
        rails.remove(link(1));
        rails.remove(link(3));
        // One link found no rail, one went to the other rail.
        rails.assign(link(3), 0);
        rails.restore(1);
        assert_eq!(rails.misplaced(up()), Some(link(1)), "over TCP");
        rails.assign(link(1), 1);
        let moved = rails.misplaced(up()).expect("three on one rail and one on the other");
        assert_eq!(rails.remove(moved), Some(0));
        rails.assign(moved, rails.pick().expect("awake"));
        assert_eq!(rails.misplaced(up()), None);
        assert_eq!(counts(&rails), [2, 2]);
    }

    #[test]
    fn links_move_only_to_a_restored_rail_and_only_if_loads_even_out() {
        let mut rails = filled(&[1, 1], 4);
        let up = || (0..4).map(link);
        let pile =
            |rails: &mut PortScheduler| (0..4).for_each(|index| rails.assign(link(index), 0));
        pile(&mut rails);
        assert_eq!(rails.misplaced(up()), None, "no rail came back");
        let mut rails = filled(&[1, 1], 3);
        rails.restore(1);
        assert_eq!(rails.misplaced(up().take(3)), None, "two and one: moving one changes nothing");
        pile(&mut rails);
        assert_eq!(rails.misplaced(up()), None, "it is settled until another comes back");
    }

    #[test]
    fn the_fullest_rail_gives_a_link_first() {
        let mut rails = PortScheduler::new([1, 1, 1]);
        for (index, rail) in (0..).zip([0, 0, 0, 0, 1, 1]) {
            rails.assign(link(index), rail);
        }
        rails.restore(2);
        for order in [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]] {
            let found = rails.misplaced(order.into_iter().map(link)).expect("one is to move");
            assert_eq!(rails.rail_of(found), Some(0), "{order:?}");
        }
    }
}
