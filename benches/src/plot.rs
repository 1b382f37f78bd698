//! Draws small charts as SVG: panels beside each other with lines of points, and
//! bars below each other. Plain text out, no other crate; called by programs that write docs.

use std::fmt::Write;

/// One chart.
pub struct Panel {
    /// What is varied: the axis below.
    pub title: String,
    /// Names of the points on the axis below, evenly spaced.
    pub ticks: Vec<String>,
    /// Lines: a name, and a value for each tick; what is no number is left out.
    pub lines: Vec<(String, Vec<f64>)>,
    /// The unit of the values.
    pub unit: String,
    /// What is to be said of it, a line each.
    pub caption: Vec<String>,
}

const WIDTH: f64 = 384.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 58.0;
const RIGHT: f64 = 40.0;
const COLORS: [&str; 4] = ["#1f77b4", "#999999", "#d62728", "#2ca02c"];
const COLUMNS: usize = 2;
const CAPTION_HEIGHT: f64 = 14.0;

/// Draws panels, two in a row.
pub fn draw(panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let caption = panels.iter().map(|panel| panel.caption.len()).max().unwrap_or(0);
    let row_height = HEIGHT + CAPTION_HEIGHT * caption as f64;
    let (width, height) = (WIDTH * COLUMNS as f64, row_height * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        let (x, y) = (WIDTH * (index % COLUMNS) as f64, row_height * (index / COLUMNS) as f64);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw_panel(&mut svg, panel);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel) {
    let most = panel.lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let top = round_up(most);
    // A quarter of a small number is no whole one.
    let places = if top < 20.0 { 1 } else { 0 };
    let x = |at: usize| {
        let steps = panel.ticks.len().saturating_sub(1).max(1) as f64;
        LEFT + (WIDTH - LEFT - RIGHT) * at as f64 / steps
    };
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{}, by {}</text>",
        panel.unit, panel.title
    );
    for quarter in 0..=4 {
        let value = top * f64::from(quarter) / 4.0;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.places$}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (at, tick) in panel.ticks.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            x(at),
            HEIGHT - BOTTOM + 16.0
        );
    }
    for (number, (name, values)) in panel.lines.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let points: Vec<String> = values
            .iter()
            .enumerate()
            .filter(|(_, value)| value.is_finite())
            .map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{name}</text>",
            LEFT + (WIDTH - LEFT) / panel.lines.len().max(3) as f64 * number as f64,
            HEIGHT - BOTTOM + 36.0
        );
    }
    for (number, line) in panel.caption.iter().enumerate() {
        let y = HEIGHT - BOTTOM + 54.0 + CAPTION_HEIGHT * number as f64;
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y:.1}\">{line}</text>");
    }
}

/// A chart of bars, one below the other.
pub struct Bars {
    /// What is compared.
    pub title: String,
    /// The unit of the values.
    pub unit: String,
    /// A name, a value, and whether it is ours.
    pub bars: Vec<(String, f64, bool)>,
}

const BAR_HEIGHT: f64 = 16.0;
const NAMES_WIDTH: f64 = 170.0;
const BARS_WIDTH: f64 = 420.0;

/// Draws charts of bars, one below the other; each has its own scale.
pub fn draw_bars(charts: &[Bars]) -> String {
    let rows: usize = charts.iter().map(|chart| chart.bars.len() + 2).sum();
    let (width, height) = (NAMES_WIDTH + BARS_WIDTH + 80.0, BAR_HEIGHT * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut row = 0.0;
    for Bars { title, unit, bars } in charts {
        let most = bars.iter().map(|(_, value, _)| *value).fold(f64::MIN_POSITIVE, f64::max);
        row += 1.0;
        let y = BAR_HEIGHT * row;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{y:.1}\" font-weight=\"bold\">{title}</text>");
        for (name, value, ours) in bars {
            row += 1.0;
            let (y, long) = (BAR_HEIGHT * row, BARS_WIDTH * value / most);
            let color = if *ours { COLORS[0] } else { COLORS[1] };
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{NAMES_WIDTH}\" y=\"{:.1}\" width=\"{long:.1}\" height=\"11\" \
                 fill=\"{color}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{value:.3} {unit}</text>",
                NAMES_WIDTH - 6.0,
                y - 10.0,
                NAMES_WIDTH + long + 4.0
            );
        }
        row += 1.0;
    }
    svg.push_str("</svg>\n");
    svg
}

/// The next number that is one, two or five of a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.iter().map(|step| step * power).find(|top| *top >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number() {
        assert_eq!([3.0, 100.0, 380.0, 401.0].map(round_up), [5.0, 100.0, 500.0, 500.0]);
    }

    #[test]
    fn the_longest_bar_has_all_the_width() {
        let bars = vec![("cp".into(), 1.0, false), ("ours".into(), 2.0, true)];
        let svg = draw_bars(&[Bars { title: "a file".into(), unit: "s".into(), bars }]);
        assert!(svg.contains("width=\"210.0\"") && svg.contains("width=\"420.0\""), "{svg}");
    }

    fn panel(values: Vec<f64>, caption: Vec<String>) -> Panel {
        Panel {
            title: "rails".into(),
            ticks: vec!["1".into(), "2".into(), "4".into()],
            lines: vec![("measured".into(), values)],
            unit: "GB/s".into(),
            caption,
        }
    }

    #[test]
    fn every_value_is_a_point() {
        let svg = draw(&[panel(vec![1.0, 2.0, 4.0], Vec::new())]);
        assert!(svg.contains("points=\"56.0,168.4 200.0,134.8 344.0,67.6\""), "{svg}");
    }

    #[test]
    fn what_was_not_measured_is_no_point() {
        let svg = draw(&[panel(vec![1.0, f64::NAN, 4.0], vec!["it is flat".into()])]);
        assert!(svg.contains("points=\"56.0,168.4 344.0,67.6\""), "{svg}");
        assert!(svg.contains(">it is flat</text>"), "{svg}");
    }
}
