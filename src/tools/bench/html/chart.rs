//! Line charts over the number of requests in flight, as SVG.

use std::fmt::Write;

use troupe_base::text::escape_markup;

/// Of the picture, in its own units; the page scales it.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 444.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 210.0;

/// Labels of the x axis nearer than this overlap.
const MIN_LABEL_DISTANCE: f64 = 26.0;

/// A limit so many times above all lines is not drawn.
const MAX_LIMIT_RATIO: f64 = 4.0;

/// One picture.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// Requests in flight, ascending.
    pub(super) x: &'a [usize],
    pub(super) series: Vec<ChartSeries>,
    /// A line across, and what it is.
    pub(super) limit: Option<Across>,
    /// How a value is written.
    pub(super) write: fn(f64) -> String,
}

/// A line across the picture.
pub(super) struct Across {
    pub(super) value: f64,
    pub(super) text: String,
    pub(super) colour: u8,
}

/// One line.
pub(super) struct ChartSeries {
    pub(super) name: String,
    /// Of the style sheet's.
    pub(super) colour: u8,
    /// One for each x; `None` where it is not known.
    pub(super) values: Vec<Option<f64>>,
}

/// A card with the picture; nothing if there is nothing to draw.
pub(super) fn chart(chart: &Chart<'_>) -> String {
    let drawn: Vec<&ChartSeries> =
        chart.series.iter().filter(|it| it.values.iter().any(Option::is_some)).collect();
    if drawn.is_empty() {
        return String::new();
    }
    let values = drawn.iter().flat_map(|it| it.values.iter().flatten().copied());
    let highest = values.fold(0.0, f64::max);
    // A limit far above the lines would press them to the ground.
    let limit = chart.limit.as_ref().filter(|it| it.value <= MAX_LIMIT_RATIO * highest);
    let highest = limit.map_or(highest, |it| highest.max(it.value));
    let step = tick(highest);
    let top = (highest / step * 0.9999).ceil().max(1.0) * step;
    let y = |value: f64| BOTTOM - value / top * (BOTTOM - TOP);
    let title = escape_markup(chart.title);
    let mut out = format!(
        "<figure class=\"card\">\n<figcaption>{title}</figcaption>\n{}\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n",
        legend(&drawn)
    );
    let mut at = 0.0;
    while at <= top * 1.001 {
        let (y, text) = (y(at), escape_markup(&round(&(chart.write)(at))));
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"end\" x=\"{:.1}\" \
             y=\"{:.1}\">{text}</text>",
            LEFT - 8.0,
            y + 4.0
        );
        at += step;
    }
    out += &bottom(chart.x);
    if let Some(Across { value, text, colour }) = limit {
        let (y, text) = (y(*value), escape_markup(text));
        let _ = writeln!(
            out,
            "<path class=\"limit s{colour}\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"f{colour}\" \
             x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
            LEFT + 6.0,
            y - 5.0
        );
    }
    drawn.iter().for_each(|it| out += &line(it, chart, &y));
    out + "</svg>\n</figure>\n"
}

/// Names of lines, unless the title says it all.
fn legend(series: &[&ChartSeries]) -> String {
    let one = |it: &&ChartSeries| {
        format!("<span class=\"c{}\">{}</span>", it.colour, escape_markup(&it.name))
    };
    format!("<p class=\"legend\">{}</p>\n", series.iter().map(one).collect::<String>())
}

fn line(series: &ChartSeries, chart: &Chart<'_>, y: &impl Fn(f64) -> f64) -> String {
    let places = places(chart.x);
    let known: Vec<(usize, f64)> =
        series.values.iter().enumerate().filter_map(|(index, it)| Some((index, (*it)?))).collect();
    let points: Vec<_> =
        known.iter().map(|(index, it)| format!("{:.1} {:.1}", places[*index], y(*it))).collect();
    let mut out =
        format!("<path class=\"line s{}\" d=\"M{}\"/>\n", series.colour, points.join("L"));
    for (index, value) in known {
        let (x, y, value) = (places[index], y(value), (chart.write)(value));
        let _ = writeln!(
            out,
            "<g><circle class=\"hit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"11\"/><circle class=\"dot \
             f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\"/><title>{}: {} with {} in \
             flight</title></g>",
            series.colour,
            escape_markup(&series.name),
            escape_markup(&value),
            chart.x[index]
        );
    }
    out
}

fn bottom(x: &[usize]) -> String {
    let mut out = String::new();
    let mut last = f64::NEG_INFINITY;
    for (value, place) in x.iter().zip(places(x)) {
        if last + MIN_LABEL_DISTANCE <= place {
            let y = BOTTOM + 18.0;
            let _ =
                writeln!(out, "<text class=\"mid\" x=\"{place:.1}\" y=\"{y:.1}\">{value}</text>");
            last = place;
        }
    }
    let (middle, y) = ((LEFT + RIGHT) / 2.0, BOTTOM + 36.0);
    out + &format!("<text class=\"mid\" x=\"{middle:.1}\" y=\"{y:.1}\">requests in flight</text>\n")
}

/// Where each level stands: twice as many in flight are always as far apart.
fn places(x: &[usize]) -> Vec<f64> {
    let log = |it: usize| (it.max(1) as f64).log2();
    let (Some(first), Some(last)) = (x.first(), x.last()) else { return Vec::new() };
    let (low, range) = (log(*first), log(*last) - log(*first));
    let share = |it: usize| if range == 0.0 { 0.5 } else { (log(it) - low) / range };
    x.iter().map(|it| LEFT + 14.0 + share(*it) * (RIGHT - LEFT - 28.0)).collect()
}

/// A round distance between lines of the grid: three to five of them up to this value.
fn tick(highest: f64) -> f64 {
    if highest <= 0.0 || !highest.is_finite() {
        return 1.0;
    }
    let rough = highest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0].into_iter().find(|it| rough * 0.9999 <= it * power);
    round.unwrap_or(10.0) * power
}

/// Round numbers need no zeros behind the point.
pub(super) fn round(text: &str) -> String {
    let (number, unit) = text.split_at(text.find(' ').unwrap_or(text.len()));
    match number.contains('.') {
        true => format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.')),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_round_numbers() {
        for (highest, expected) in
            [(100.0, 20.0), (121.0, 25.0), (7.9, 2.0), (1.0, 0.2), (0.0, 1.0), (f64::NAN, 1.0)]
        {
            let found = tick(highest);
            assert!((found - expected).abs() < 1e-9, "{highest}: {found}");
        }
    }

    #[test]
    fn levels_stand_by_their_ratio() {
        let places = places(&[1, 2, 4, 16]);
        assert!((places[1] - places[0] - (places[2] - places[1])).abs() < 1e-9);
        assert!((places[3] - places[2] - 2.0 * (places[1] - places[0])).abs() < 1e-9);
        assert_eq!(super::places(&[8]), [(LEFT + RIGHT) / 2.0]);
    }

    #[test]
    fn round_numbers_are_short() {
        for (text, expected) in [
            ("80.0 ms", "80 ms"),
            ("2.50 s", "2.5 s"),
            ("100", "100"),
            ("0", "0"),
            ("20 %", "20 %"),
        ] {
            assert_eq!(round(text), expected);
        }
    }

    #[test]
    fn what_is_not_known_is_not_drawn() {
        let draw = |values: Vec<Option<f64>>| {
            let series = vec![ChartSeries { name: "<a>".to_owned(), colour: 1, values }];
            let write = |it: f64| it.to_string();
            chart(&Chart { title: "t", x: &[1, 2], series, limit: None, write })
        };
        assert_eq!(draw(vec![None, None]), "");
        let one = draw(vec![None, Some(3.0)]);
        assert!(one.contains("&lt;a&gt;: 3 with 2 in flight") && one.matches("dot").count() == 1);
    }
}
