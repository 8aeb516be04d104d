//! A plot as SVG: curves over message size, both axes logarithmic.
#![forbid(unsafe_code)]

use super::text::{bytes_short, number};

/// A curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Size in bytes and value, in the order of sizes.
    pub points: Vec<(f64, f64)>,
}

/// Curves in one frame.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What the values are, with unit.
    pub title: String,
    /// The curves.
    pub series: Vec<Series>,
}

// Pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Curves take these in turn; they stay apart for the colour-blind (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// A logarithmic axis.
#[derive(Copy, Clone, Debug)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// For `values`, widened to powers of `base`, drawn between two pixels.
    fn new(values: impl Iterator<Item = f64>, base: f64, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, 0f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            (low, high) = (1.0, base);
        }
        let power = |value: f64, round: fn(f64) -> f64| base.powf(round(value.log(base)));
        let low = power(low * 1.0001, f64::floor);
        let high = power(high * 0.9999, f64::ceil).max(low * base);
        Axis { low, high, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// Places for numbers: powers of `base`, thinned out to a dozen.
    fn ticks(&self, base: f64) -> Vec<f64> {
        let count = ((self.high / self.low).ln() / base.ln()).round() as usize;
        let step = count / 12 + 1;
        (0..=count).step_by(step).map(|power| self.low * base.powi(power as i32)).collect()
    }
}

/// A whole document with charts below each other.
pub fn page(title: &str, charts: &[Chart]) -> String {
    let height = 30.0 + HEIGHT * charts.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    for (at, chart) in charts.iter().enumerate() {
        svg.push_str(&format!(
            "<g transform=\"translate(0 {})\">\n{}</g>\n",
            30.0 + HEIGHT * at as f64,
            chart.body()
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

impl Chart {
    fn body(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        // A message of no bytes has no place on a logarithmic axis; it is drawn at the left end.
        let sizes = Axis::new(points().map(|point| point.0), 2.0, LEFT, WIDTH - RIGHT);
        let values = Axis::new(points().map(|point| point.1), 10.0, HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{}</text>\n",
            TOP - 12.0,
            escaped(&self.title)
        );
        svg.push_str(&grid(&sizes, &values));
        for (at, series) in self.series.iter().enumerate() {
            svg.push_str(&series.body(&sizes, &values, COLOURS[at % COLOURS.len()], at));
        }
        svg
    }
}

fn grid(sizes: &Axis, values: &Axis) -> String {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let mut svg = String::new();
    for tick in sizes.ticks(2.0) {
        let x = sizes.at(tick);
        svg.push_str(&format!(
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            bottom + 16.0,
            bytes_short(tick as u64)
        ));
    }
    for tick in values.ticks(10.0) {
        let y = values.at(tick);
        svg.push_str(&format!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 6.0,
            y + 4.0,
            number(tick)
        ));
    }
    svg.push_str(&format!(
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\" fill=\"none\" \
         stroke=\"#444\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">message size, bytes</text>\n",
        right - LEFT,
        bottom - TOP,
        (LEFT + right) / 2.0,
        HEIGHT - 14.0
    ));
    svg
}

impl Series {
    fn body(&self, sizes: &Axis, values: &Axis, colour: &str, place: usize) -> String {
        let drawn: Vec<(f64, f64)> = self
            .points
            .iter()
            .filter(|(_, value)| value.is_finite() && *value > 0.0)
            .map(|(size, value)| (sizes.at(*size), values.at(*value)))
            .collect();
        let path: Vec<String> = drawn.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let mut svg = format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            path.join(" ")
        );
        for ((x, y), (size, value)) in drawn.iter().zip(&self.points) {
            svg.push_str(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {}\
                 </title></circle>\n",
                bytes_short(*size as u64),
                number(*value)
            ));
        }
        let y = TOP + 16.0 + 18.0 * place as f64;
        svg.push_str(&format!(
            "<line x1=\"{}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"2\"/>\n<text x=\"{}\" y=\"{}\">{}</text>\n",
            LEFT + 12.0,
            LEFT + 36.0,
            LEFT + 42.0,
            y + 4.0,
            escaped(&self.name)
        ));
        svg
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_cover_their_values() {
        let axis = Axis::new([0.3, 52.0].into_iter(), 10.0, 100.0, 0.0);
        assert!((axis.low - 0.1).abs() < 1e-9 && (axis.high - 100.0).abs() < 1e-9);
        assert!((axis.at(0.1) - 100.0).abs() < 1e-6 && axis.at(100.0).abs() < 1e-6);
        assert_eq!(axis.ticks(10.0).len(), 4);
        let single = Axis::new([8.0].into_iter(), 2.0, 0.0, 1.0);
        assert!(single.low <= 8.0 && single.high >= 8.0 && single.high > single.low);
        assert!(Axis::new(core::iter::empty(), 2.0, 0.0, 1.0).high > 0.0);
    }
}
