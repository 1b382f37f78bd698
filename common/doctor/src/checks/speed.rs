//! Checks of speed: what a port runs at against what it, its board or its model can
//! do, how many lanes of its cable it has. How its card is connected is in `bus`.

use super::ports::Port;
use crate::facts::DeviceFacts;
use crate::finding::{Finding, Fix, Severity};
use verbatim_fabric::ports::LinkLayer;

/// Models, and the rate of the quickest card of each, in Mbit/s.
const MODELS: &[(&str, u32)] = &[
    ("MT4099", 40_000),
    ("MT4103", 40_000),
    ("MT4115", 100_000),
    ("MT4117", 50_000),
    ("MT4119", 100_000),
    ("MT4121", 100_000),
    ("MT4123", 200_000),
    ("MT4125", 200_000),
    ("MT4129", 400_000),
    ("MT4131", 800_000),
    ("MT41686", 200_000),
    ("MT41692", 400_000),
];

/// A port this much slower than the quickest of its model is not just a smaller card.
const MODEL_RATIO: u32 = 4;

/// The lanes of an InfiniBand cable.
const LANES: u32 = 4;

impl Port<'_> {
    /// The best that is known of this port, and by what.
    fn rate_known(&self, rate: u32) -> Option<(u32, &'static str)> {
        let more = self.more;
        let told = self.netdev().and_then(|netdev| netdev.speed_max);
        let own = told.filter(|&best| best > rate);
        // Another port of the same board shows what this one can do; else the model tells, of
        // which there are smaller cards. One that is down shows a rate that is made up.
        let like = |it: &&DeviceFacts| more.board.is_some() && it.board == more.board;
        let machine = &self.case.facts.machine;
        let alike = self.case.facts.devices.iter().zip(&machine.devices);
        let alike = alike.filter(|(it, _)| like(it)).flat_map(|(_, device)| &device.ports);
        let alike = alike.filter(|port| port.state.is_active());
        let sibling = alike.map(|port| port.rate_mbit).max().filter(|&best| best > rate);
        let model = more.model.as_deref().and_then(|model| {
            MODELS.iter().find(|(name, _)| *name == model).map(|(_, best)| *best)
        });
        let model = model.filter(|_| told.is_none());
        let model = model.filter(|&best| rate.saturating_mul(MODEL_RATIO) <= best);
        let own = own.map(|best| (best, "the port can do that, says ethtool"));
        let sibling = sibling.map(|best| (best, "another port of the same board runs at that"));
        own.or(sibling).or(model.map(|best| (best, "cards of this model go up to that")))
    }

    pub fn rate(&self) -> Option<Finding> {
        // The network device tells what its cable carries, the port what it was made for.
        let of_netdev = self.netdev().and_then(|netdev| netdev.speed).filter(|&speed| speed > 0);
        let rate = self.port.rate_mbit.min(of_netdev.unwrap_or(u32::MAX));
        // A device in software has no cable, and says anything.
        if rate == 0 || self.device.pci.is_none() {
            return None;
        }
        let (best, known_by) = self.rate_known(rate)?;
        let gigabits = |mbit: u32| f64::from(mbit) / 1000.0;
        let told = if self.told.rate.is_empty() { "unknown" } else { &self.told.rate };
        Some(Finding {
            check: "rate",
            severity: Severity::Limits,
            about: self.about(),
            is: format!("it runs at {} Gb/s ({told})", gigabits(rate)),
            should: format!("{} Gb/s: {known_by}", gigabits(best)),
            why: "a cable or transceiver for less, a bad one, or a switch port set to less, makes \
                  both ends agree on less"
                .into(),
            fix: Fix::Person(match self.netdev() {
                Some(netdev) => format!(
                    "change the cable, then look: ethtool {}; see the speed of the switch's port",
                    netdev.name
                ),
                None => "change the cable, then look: iblinkinfo".into(),
            }),
        })
    }

    /// Whether a cable came up with fewer lanes than it has. Of Ethernet the number says
    /// nothing: it is made up from the rate.
    pub fn width(&self) -> Option<Finding> {
        let lanes = lanes(&self.told.rate)?;
        if self.port.link_layer != LinkLayer::Infiniband || lanes >= LANES {
            return None;
        }
        // Cables that are split in two are sold; such as have one lane are not.
        let severity = if lanes == 1 { Severity::Limits } else { Severity::Note };
        Some(Finding {
            check: "width",
            severity,
            about: self.about(),
            is: format!("it runs on {lanes} of {LANES} lanes ({})", self.told.rate),
            should: format!("{LANES} lanes, or 2 behind a cable that is split on purpose"),
            why: "a lane that does not come up is a damaged cable, or a dirty or loose end of it"
                .into(),
            fix: Fix::Person(
                "clean and seat both ends, or change the cable; look: iblinkinfo".into(),
            ),
        })
    }
}

/// `100 Gb/sec (2X HDR)`: the lanes.
fn lanes(rate: &str) -> Option<u32> {
    rate.split_once('(')?.1.split_once('X')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::lanes;

    #[test]
    fn lanes_are_told_with_the_rate() {
        assert_eq!(lanes("100 Gb/sec (2X HDR)"), Some(2));
        assert_eq!(lanes("40 Gb/sec"), None);
    }
}
