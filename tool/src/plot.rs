//! A plot as SVG: curves over message size, both axes logarithmic.
#![forbid(unsafe_code)]

use super::text::{bytes_short, number};
use core::error::Error;
use core::ops::Range;
use plotters::coord::Shift;
use plotters::prelude::*;

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
const WIDTH: u32 = 720;
const HEIGHT: u32 = 380;
const TITLE: u32 = 30;
/// Most numbers at an axis.
const TICKS: usize = 12;
/// Curves take these in turn; they stay apart for the colour-blind (Okabe and Ito).
const COLOURS: [RGBColor; 4] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A whole document with charts below each other.
pub fn page(title: &str, charts: &[Chart]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let rows = charts.len().max(1);
        let size = (WIDTH, TITLE + HEIGHT * rows as u32);
        let whole = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let areas = whole.titled(title, ("sans-serif", 15))?.split_evenly((rows, 1));
        for (area, chart) in areas.iter().zip(charts) {
            chart.draw(area)?;
        }
        whole.present()?;
    }
    Ok(svg)
}

impl Chart {
    fn draw(&self, area: &Area) -> Result<(), Box<dyn Error>> {
        let drawn: Vec<Series> = self.series.iter().map(Series::drawn).collect();
        let points = || drawn.iter().flat_map(|series| &series.points);
        let sizes = range(points().map(|point| point.0), 2.0);
        let values = range(points().map(|point| point.1), 10.0);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 13))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale().base(10.0))?;
        chart
            .configure_mesh()
            .x_desc("message size, bytes")
            .x_labels(TICKS)
            .x_label_formatter(&|size| bytes_short(*size as u64))
            .y_label_formatter(&|value| number(*value))
            .max_light_lines(0)
            .draw()?;
        for (series, colour) in drawn.into_iter().zip(COLOURS.iter().cycle()) {
            let style = colour.filled().stroke_width(2);
            let line = LineSeries::new(series.points, style).point_size(3);
            let sample = move |(x, y)| Rectangle::new([(x, y - 1), (x + 18, y + 1)], style);
            chart.draw_series(line)?.label(series.name).legend(sample);
        }
        let mut legend = chart.configure_series_labels();
        legend.position(SeriesLabelPosition::UpperLeft).background_style(WHITE).draw()?;
        Ok(())
    }
}

impl Series {
    /// What has a place on logarithmic axes. A message of no bytes is drawn beside one of one.
    fn drawn(&self) -> Series {
        let points = self.points.iter().filter(|(_, value)| value.is_finite() && *value > 0.0);
        let points = points.map(|(size, value)| (size.max(1.0), *value)).collect();
        Series { name: self.name.clone(), points }
    }
}

/// The powers of `base` around `values`, and a little more: rounding leaves the numbers in.
fn range(values: impl Iterator<Item = f64>, base: f64) -> Range<f64> {
    let (mut low, mut high) = (f64::INFINITY, 0f64);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if high == 0.0 {
        return 1.0..base;
    }
    let power = |value: f64, round: fn(f64) -> f64| base.powf(round(value.log(base)));
    let low = power(low * 1.0001, f64::floor);
    low * 0.999..power(high * 0.9999, f64::ceil).max(low * base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_cover_their_values() {
        let axis = range([0.3, 52.0].into_iter(), 10.0);
        assert!((axis.start - 0.1).abs() < 1e-3 && (axis.end - 100.0).abs() < 1e-9);
        let single = range([8.0].into_iter(), 2.0);
        assert!(single.start <= 8.0 && single.end >= 8.0 && single.end > single.start);
        assert!(range(core::iter::empty(), 2.0).end > 0.0);
    }

    #[test]
    fn sizes_and_values_stand_at_the_axes_and_curves_in_their_colours() {
        let points = vec![(0.0, 0.3), (8.0, 0.5), (65_536.0, 9.0), (1e6, f64::NAN)];
        let series = vec![Series { name: "a < b".into(), points }];
        let svg = page("title", &[Chart { title: "us".into(), series }]).unwrap();
        for wanted in ["64K", "0.100", "a &lt; b", "message size, bytes", "title", "#0072B2"] {
            assert!(svg.contains(wanted), "{wanted}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }
}
