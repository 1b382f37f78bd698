//! How time grows with size: times of several sizes as times a unit, whether a line
//! of them is flat, and the words below a plot. Pure. Called by `growth-bench`.

use crate::plot::Panel;
use serde_json::{Value, json};

/// A line is flat when its most is at most so many times its least.
pub const FLAT_MAX: f64 = 1.25;

/// The best time of each size, of one way to copy.
pub struct Line {
    /// Whose.
    pub name: &'static str,
    /// Seconds, one for each size; none where it was not measured.
    pub best_s: Vec<Option<f64>>,
}

impl Line {
    /// One without times.
    pub fn new(name: &'static str, sizes: usize) -> Self {
        Self { name, best_s: vec![None; sizes] }
    }

    /// Adds a run of the size of this number.
    pub fn add(&mut self, index: usize, seconds: f64) {
        let best = &mut self.best_s[index];
        *best = Some(best.map_or(seconds, |best| best.min(seconds)));
    }

    /// What one unit took of each size, in so many parts of a second.
    fn per_unit(&self, units: &[f64], parts: f64) -> Vec<f64> {
        let time = |(seconds, units): (&Option<f64>, &f64)| {
            seconds.map_or(f64::NAN, |seconds| seconds * parts / units)
        };
        self.best_s.iter().zip(units).map(time).collect()
    }
}

/// How the time of a unit grows with the number of units.
pub struct Growth {
    /// What is varied.
    pub title: &'static str,
    /// What a value is: "ms a GiB".
    pub unit: &'static str,
    /// Parts of a second that values are in.
    pub parts: f64,
    /// The sizes, for people.
    pub ticks: Vec<String>,
    /// The sizes, in units.
    pub units: Vec<f64>,
    /// The ways.
    pub lines: Vec<Line>,
}

/// A name, and a value for each size.
type Named = (String, Vec<f64>);

impl Growth {
    fn lines(&self) -> Vec<Named> {
        let named = |line: &Line| (line.name.into(), line.per_unit(&self.units, self.parts));
        self.lines.iter().map(named).collect()
    }

    /// How many times as long as the first way each takes: what a machine does to both of one
    /// size is not in it. The first is there too, so that lines have the colours they have.
    fn beside(&self) -> Vec<Named> {
        let lines = self.lines();
        let Some((_, first)) = lines.first() else { return Vec::new() };
        let by_first = |(name, values): &Named| {
            (name.clone(), values.iter().zip(first).map(|(own, first)| own / first).collect())
        };
        lines.iter().map(by_first).collect()
    }

    /// As charts, with what is flat below them: the times, and beside the first way.
    pub fn panels(&self) -> [Panel; 2] {
        let first = self.lines.first().map_or("", |line| line.name);
        let beside = format!("times as long as {first}");
        let both = [(self.unit.to_owned(), self.lines(), 0), (beside, self.beside(), 1)];
        both.map(|(unit, lines, told_from)| {
            let caption = caption(&lines[told_from.min(lines.len())..]);
            Panel { title: self.title.into(), ticks: self.ticks.clone(), lines, unit, caption }
        })
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let row = |(line, (name, values)): (&Line, Named)| {
            json!({
                "way": name, "best_s": line.best_s, "per_unit": values,
                "most_by_least": spread(&values),
                "flat": spread(&values).map(|spread| spread <= FLAT_MAX),
            })
        };
        let rows: Vec<Value> = self.lines.iter().zip(self.lines()).map(row).collect();
        let beside = self.beside().into_iter();
        let beside: Vec<Value> =
            beside.map(|(name, values)| json!({ "way": name, "times": values })).collect();
        json!({
            "by": self.title, "unit": self.unit, "sizes": self.ticks, "flat_max": FLAT_MAX,
            "ways": rows, "beside_first": beside,
        })
    }
}

/// A sentence for each line.
fn caption(lines: &[Named]) -> Vec<String> {
    let told = |(name, values): &Named| {
        let spread = spread(values)?;
        let verdict = if spread <= FLAT_MAX { "flat" } else { "not flat" };
        let (first, last) = ends(values)?;
        let grown = last / first;
        Some(format!("{name}: {verdict}, most by least {spread:.2}, last by first {grown:.2}"))
    };
    lines.iter().filter_map(told).collect()
}

/// The most by the least of what was measured; none of fewer than two values.
fn spread(values: &[f64]) -> Option<f64> {
    let known = || values.iter().copied().filter(|value| value.is_finite());
    let (least, most) = (known().reduce(f64::min)?, known().reduce(f64::max)?);
    (known().count() > 1).then_some(most / least)
}

/// The first and the last of what was measured.
fn ends(values: &[f64]) -> Option<(f64, f64)> {
    let mut known = values.iter().copied().filter(|value| value.is_finite());
    let first = known.next()?;
    Some((first, known.next_back().unwrap_or(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth() -> Growth {
        let mut even = Line::new("download", 3);
        let mut steep = Line::new("upload", 3);
        for (index, (flat, grown)) in [(1.0, 1.0), (2.1, 2.0), (4.4, 6.0)].into_iter().enumerate() {
            even.add(index, flat + 1.0);
            even.add(index, flat);
            if index != 1 {
                steep.add(index, grown);
            }
        }
        let ticks = ["1", "2", "4"].map(str::to_owned).into();
        let lines = vec![even, steep, Line::new("nobody", 3)];
        Growth {
            title: "size",
            unit: "ms a GiB",
            parts: 1e3,
            ticks,
            units: vec![1.0, 2.0, 4.0],
            lines,
        }
    }

    #[test]
    fn a_caption_says_what_is_flat_and_what_is_not() {
        let [times, beside] = growth().panels();
        assert_eq!(
            times.caption,
            [
                "download: flat, most by least 1.10, last by first 1.10",
                "upload: not flat, most by least 1.50, last by first 1.50",
            ]
        );
        assert_eq!(beside.unit, "times as long as download");
        let upload = "upload: not flat, most by least 1.36, last by first 1.36";
        assert_eq!(beside.caption, [upload], "what has one value less has one ratio less");
    }

    #[test]
    fn what_was_not_measured_has_no_value() {
        let json = growth().to_json();
        assert_eq!(json["ways"][1]["per_unit"], json!([1000.0, null, 1500.0]));
        assert_eq!(json["ways"][0]["flat"], true);
        assert_eq!(json["ways"][2]["flat"], Value::Null, "of nothing nothing can be said");
    }
}
