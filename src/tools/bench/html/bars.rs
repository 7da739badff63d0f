//! Bars: where the time of each step goes, and how many instances it should have.

use std::fmt::Write;

use super::super::{
    advice::Suggestion,
    format::{plain, time},
    level::StepLoad,
};
use troupe_base::text::escape_markup;

/// Names and colours of the parts of a bar.
const PARTS: [(&str, u8); 4] = [("queue", 3), ("input", 4), ("infer", 1), ("output", 2)];

/// What the colours mean.
pub(super) const LEGEND: &str = "<p class=\"legend\"><span class=\"c3\">queue</span>\
     <span class=\"c4\">compute input</span><span class=\"c1\">compute infer</span>\
     <span class=\"c2\">compute output</span></p>\n";

/// A bar for each step, all on one scale.
pub(super) fn steps(steps: &[StepLoad]) -> String {
    let times = |step: &StepLoad| {
        let it = &step.counts;
        [it.queue_ns, it.input_ns, it.infer_ns, it.output_ns].map(|ns| it.each(ns))
    };
    let longest = steps.iter().map(|it| times(it).iter().sum::<f64>()).fold(1.0, f64::max);
    let mut out = "<div class=\"bars\">\n".to_owned();
    for step in steps {
        let times = times(step);
        let name = escape_markup(&plain(&step.member.key.name));
        let whole: f64 = times.iter().sum();
        let _ = write!(
            out,
            "<div class=\"name\">{name}</div><svg class=\"bar\" role=\"img\" \
             aria-label=\"{name}: {}\">",
            time(whole)
        );
        let mut left = 0.0;
        for ((part, colour), ns) in PARTS.iter().zip(times) {
            let width = ns / longest * 100.0;
            if 0.0 < width {
                let _ = write!(
                    out,
                    "<rect class=\"f{colour}\" x=\"{left:.2}%\" width=\"{width:.2}%\" \
                     height=\"100%\"><title>{part} {}</title></rect>",
                    time(ns)
                );
            }
            left += width;
        }
        let _ = writeln!(out, "</svg><div class=\"number\">{}</div>", time(whole));
    }
    out + "</div>\n"
}

/// What to write into which config.
pub(super) fn suggestions(suggestions: &[Suggestion]) -> String {
    if suggestions.is_empty() {
        return String::new();
    }
    let one = |it: &Suggestion| {
        let name = escape_markup(&plain(&it.key.name));
        format!(
            "<tr><td><code>{name}</code></td><td>{} → <b>{}</b></td>\
             <td><code>instance_group [ {{ count: {} }} ]</code></td></tr>\n",
            it.now, it.then, it.then
        )
    };
    let rows: String = suggestions.iter().map(one).collect();
    format!(
        "<div class=\"wide\"><table class=\"suggested\">\n<thead><tr><th>Step</th><th>Instances\
         </th><th>In its config.pbtxt</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}
