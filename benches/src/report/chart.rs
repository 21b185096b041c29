//! Charts as inline SVG: a dot and its interval for each target, ratios on a logarithmic axis.

use std::fmt::Write;

use crate::statistics::Estimate;

/// A dot.
pub(super) struct Dot {
    /// Which series.
    pub(super) series: usize,
    /// Where.
    pub(super) at: Estimate,
    /// Whether it may be believed: else it is drawn hollow.
    pub(super) solid: bool,
    /// What to say when somebody points at it.
    pub(super) title: String,
}

/// A line of the chart.
pub(super) struct Line {
    pub(super) label: String,
    /// Beside the label: the time that 1 stands for.
    pub(super) note: String,
    pub(super) dots: Vec<Dot>,
    /// Instead of dots that are missing.
    pub(super) remarks: Vec<(usize, String)>,
}

/// Colours of the series, in light and dark surroundings alike.
pub(super) const COLOURS: [&str; 8] = ["#d29922", "#2f81f7", "#8250df", "#3fb950", "#f85149", "#e16f24", "#db61a2", "#39c5cf"];

const LEFT: f64 = 280.0;
/// Room for the note.
const NOTE: f64 = 62.0;
const WIDTH: f64 = 960.0;
const RIGHT: f64 = 24.0;
const LANE: f64 = 13.0;
const GAP: f64 = 9.0;
const TOP: f64 = 26.0;

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Draws ratios: 1 is the reference. Lanes of a line are those of the series, so that a colour keeps its place.
pub(super) fn ratios(lines: &[Line], series: usize) -> String {
    let all = || lines.iter().flat_map(|l| &l.dots).flat_map(|d| [d.at.low, d.at.high, d.at.median]).filter(|v| *v > 0.0);
    let low = all().fold(0.7_f64, f64::min) * 0.9;
    let high = all().fold(2.5_f64, f64::max) * 1.15;
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value.clamp(low, high) / low).ln() / (high / low).ln();
    let block = series as f64 * LANE + GAP;
    let height = TOP + lines.len() as f64 * block + 8.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\" font-size=\"11.5\" font-family=\"inherit\">"
    );
    for tick in ticks(low, high) {
        let (at, class) = (x(tick), if tick == 1.0 { "one" } else { "grid" });
        let _ = write!(svg, "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>", height - 8.0);
        let _ = write!(svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}x</text>", TOP - 9.0);
    }
    for (n, line) in lines.iter().enumerate() {
        let top = TOP + n as f64 * block;
        if n % 2 == 1 {
            let _ = write!(svg, "<rect class=\"band\" x=\"0\" width=\"{WIDTH}\" y=\"{top:.1}\" height=\"{block:.1}\"/>");
        }
        let middle = top + block / 2.0 + 4.0;
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 12.0 - NOTE,
            escape(&line.label)
        );
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            escape(&line.note)
        );
        let lane = |series: usize| top + GAP / 2.0 + (series as f64 + 0.5) * LANE;
        for dot in &line.dots {
            let (y, colour) = (lane(dot.series), COLOURS[dot.series % COLOURS.len()]);
            let (from, to, at) = (x(dot.at.low), x(dot.at.high), x(dot.at.median));
            let faint = if dot.solid { "" } else { " opacity=\"0.45\"" };
            let fill = if dot.solid { colour } else { "none" };
            let _ = write!(
                svg,
                "<g{faint}><title>{}</title><line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" \
                 stroke-width=\"2\"/><circle cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.6\"/></g>",
                escape(&dot.title)
            );
        }
        for (series, remark) in &line.remarks {
            let (y, colour) = (lane(*series) + 4.0, COLOURS[series % COLOURS.len()]);
            let _ = write!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>", LEFT + 6.0, escape(remark));
        }
    }
    svg.push_str("</svg>");
    svg
}

/// Round numbers of the axis, always with 1.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (-3..=5).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
    let steps: Vec<f64> = decades.filter(|t| *t >= low && *t <= high).map(|t| (t * 1e6).round() / 1e6).collect();
    // Over three decades only the powers of ten have room.
    if high / low > 2000.0 { steps.into_iter().filter(|t| (t.log10() - t.log10().round()).abs() < 1e-9).collect() } else { steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_one_and_every_dot_is_within_the_picture() {
        assert!(ticks(0.6, 3.0).contains(&1.0));
        assert!(ticks(0.01, 5000.0).len() < 8);
        let at = Estimate { median: 40.0, low: 0.02, high: 90.0, count: 7 };
        let dot = Dot { series: 1, at, solid: true, title: "a & b".into() };
        let svg =
            ratios(&[Line { label: "<copy>".into(), note: "3 ms".into(), dots: vec![dot], remarks: vec![(0, "timed out".into())] }], 2);
        assert!(svg.contains("&lt;copy&gt;") && svg.contains("a &amp; b") && svg.contains("timed out"));
        let numbers = svg.split("cx=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        assert!(numbers.into_iter().all(|x| (LEFT..=WIDTH).contains(&x)));
    }
}
