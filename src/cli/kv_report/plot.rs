//! Draws a report as SVG.
//!
//! Left: divergence from the reference over bytes per token, both logarithmic. Right: needles by depth.

use std::fmt::Write;

use super::{Line, Report};

const WIDTH: f64 = 1080.0;
/// Width of a picture without needles.
const WIDTH_OF_ONE: f64 = 620.0;
const HEIGHT: f64 = 474.0;

/// Okabe and Ito's colours, which most people can tell apart; the reference is black.
const COLOURS: [&str; 8] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];

/// Smaller divergences are drawn at this value: they are rounding errors.
const LEAST_KL: f64 = 1e-6;

/// Position of one diagram, and the value ranges of its axes.
struct Panel {
    left: f64,
    right: f64,
    x: (f64, f64),
    y: (f64, f64),
}

const TOP: f64 = 70.0;
const BOTTOM: f64 = HEIGHT - 64.0;

impl Panel {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let part = |at: f64, (from, to): (f64, f64)| (at - from) / (to - from);
        let across = self.left + part(x, self.x) * (self.right - self.left);
        (across, BOTTOM - part(y, self.y) * (BOTTOM - TOP))
    }

    /// Draws the frame, the axis titles, and a grid line and label per tick.
    fn frame(&self, svg: &mut String, names: [&str; 3], x: &[(f64, String)], y: &[(f64, String)]) {
        let [title, x_name, y_name] = names;
        let (left, right, middle) = (self.left, self.right, (self.left + self.right) / 2.0);
        text(svg, (middle, TOP - 22.0), "middle", 15, "#000", title);
        text(svg, (middle, HEIGHT - 18.0), "middle", 13, "#333", x_name);
        let (up, y_middle) = (left - 58.0, (TOP + BOTTOM) / 2.0);
        let turned = format!(r#"transform="rotate(-90 {up:.1} {y_middle:.1})" "#);
        push(
            svg,
            format_args!(
                "<text {turned}x=\"{up:.1}\" y=\"{y_middle:.1}\" text-anchor=\"middle\" font-size=\"13\" \
                 fill=\"{}\">{}</text>",
                "#333",
                escaped(y_name)
            ),
        );
        for (at, word) in x {
            let (x, _) = self.at(*at, self.y.0);
            line(svg, (x, TOP), (x, BOTTOM), "#e6e6e6", 1.0);
            text(svg, (x, BOTTOM + 18.0), "middle", 12, "#333", word);
        }
        for (at, word) in y {
            let (_, y) = self.at(self.x.0, *at);
            line(svg, (left, y), (right, y), "#e6e6e6", 1.0);
            text(svg, (left - 8.0, y + 4.0), "end", 12, "#333", word);
        }
        let (width, height) = (right - left, BOTTOM - TOP);
        push(
            svg,
            format_args!(
                "<rect x=\"{left:.1}\" y=\"{TOP:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 fill=\"none\" stroke=\"{}\"/>",
                "#999"
            ),
        );
    }
}

impl Report {
    /// The report as SVG.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let width = if self.caches[0].needles.is_empty() { WIDTH_OF_ONE } else { WIDTH };
        push(
            &mut svg,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" \
                 width=\"{width}\" height=\"{HEIGHT}\" font-family=\"sans-serif\">"
            ),
        );
        push(&mut svg, format_args!(r##"<rect width="{width}" height="{HEIGHT}" fill="#fff"/>"##));
        let path = std::path::Path::new(&self.model);
        let name = path.file_name().map_or(self.model.as_str().into(), |name| name.to_string_lossy());
        let chunks = if self.chunks == 1 { "chunk" } else { "chunks" };
        let heading = format!("{name}, {} {chunks} of {} tokens", self.chunks, self.n_ctx);
        text(&mut svg, (20.0, 20.0), "start", 12, "#333", &heading);
        self.divergence(&mut svg);
        if !self.caches[0].needles.is_empty() {
            self.depths(&mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn divergence(&self, svg: &mut String) {
        let points: Vec<_> = self.caches.iter().enumerate().filter_map(point).collect();
        let bytes = self.caches.iter().map(|line| line.bytes_a_token as f64);
        let (least, most) = bytes.fold((f64::INFINITY, 0.0), |(a, b): (f64, f64), x| (a.min(x), b.max(x)));
        let kls = || points.iter().flat_map(|point| [point.mean_kl, point.attention_kl]);
        let low = kls().fold(f64::INFINITY, f64::min).log10().floor();
        let high = kls().fold(LEAST_KL, f64::max).log10().ceil().max(low + 1.0);
        let panel =
            Panel { left: 90.0, right: 530.0, x: (least.log2() - 0.3, most.log2() + 0.6), y: (low, high) };
        let whole = |from: f64, to: f64| (from.ceil() as i32)..=(to.floor() as i32);
        let x = self.caches.iter().map(|line| line.bytes_a_token as f64).map(|n| (n.log2(), n.to_string()));
        let x = apart(x.collect());
        let y: Vec<_> = whole(low, high).map(|power| (f64::from(power), format!("1e{power}"))).collect();
        let title = format!("KL from {} (filled: next token, hollow: attention)", self.caches[0].cache);
        panel.frame(svg, [&title, "bytes per token, all layers", "KL"], &x, &y);
        for Point { i, name, bytes, mean_kl, attention_kl } in &points {
            let colour = COLOURS[i % COLOURS.len()];
            let (full, hollow) =
                (panel.at(bytes.log2(), mean_kl.log10()), panel.at(bytes.log2(), attention_kl.log10()));
            line(svg, full, hollow, colour, 1.0);
            for ((x, y), fill) in [(full, colour), (hollow, "#fff")] {
                push(
                    svg,
                    format_args!(
                        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{fill}\" stroke=\"{colour}\" \
                         stroke-width=\"2\"/>"
                    ),
                );
            }
            text(svg, (full.0 + 9.0, full.1 + 4.0), "start", 12, colour, name);
        }
    }

    fn depths(&self, svg: &mut String) {
        let panel = Panel { left: 650.0, right: WIDTH - 150.0, x: (-3.0, 103.0), y: (-0.03, 1.03) };
        let ticks = |n: usize, word: fn(usize) -> (f64, String)| (0..=n).map(word).collect::<Vec<_>>();
        let x = ticks(5, |i| (20.0 * i as f64, format!("{} %", 20 * i)));
        let y = ticks(5, |i| (0.2 * i as f64, format!("{} %", 20 * i)));
        panel.frame(svg, ["Retrieved needles", "depth in the text", "most likely tokens"], &x, &y);
        for (i, Line { cache, needles, .. }) in self.caches.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let at: Vec<_> = needles.iter().map(|n| panel.at(n.depth as f64, n.retrieved.value)).collect();
            let points: Vec<_> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let dashes = if i == 0 { "" } else { r#" stroke-dasharray="6 3""# };
            push(
                svg,
                format_args!(
                    r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>"#,
                    points.join(" ")
                ),
            );
            for (x, y) in at {
                push(svg, format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#));
            }
            let y = TOP + 14.0 + 20.0 * i as f64;
            line(svg, (panel.right + 12.0, y - 4.0), (panel.right + 32.0, y - 4.0), colour, 2.0);
            text(svg, (panel.right + 38.0, y), "start", 12, "#000", cache);
        }
    }
}

/// A cache type that is compared with the reference.
struct Point<'a> {
    /// Index in the list of caches.
    i: usize,
    name: &'a str,
    bytes: f64,
    mean_kl: f64,
    attention_kl: f64,
}

fn point((i, line): (usize, &Line)) -> Option<Point<'_>> {
    let distance = line.distance.as_ref()?;
    let [mean_kl, attention_kl] = [distance.mean_kl, distance.attention_kl].map(|kl| kl.value.max(LEAST_KL));
    Some(Point { i, name: &line.cache, bytes: line.bytes_a_token as f64, mean_kl, attention_kl })
}

/// Drops ticks whose label would overlap the previous one; `at` is a power of two.
fn apart(mut ticks: Vec<(f64, String)>) -> Vec<(f64, String)> {
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut last = f64::NEG_INFINITY;
    ticks.retain(|(at, _)| {
        let keep = at - last > 0.3;
        if keep {
            last = *at;
        }
        keep
    });
    ticks
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let ((x1, y1), (x2, y2)) = (from, to);
    push(
        svg,
        format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>"
        ),
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, colour: &str, words: &str) {
    push(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             fill=\"{colour}\">{}</text>",
            escaped(words)
        ),
    );
}

/// Appends an element on its own line.
fn push(svg: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(svg, "{element}").expect("a string takes everything");
}

/// Escapes text for XML: a file name may contain any character.
fn escaped(words: &str) -> String {
    let visible = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    let escaped = visible.map(|c| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c => c.to_string(),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_picture() {
        assert_eq!(escaped("a<b>&\"c\"\u{7}"), "a&lt;b&gt;&amp;&quot;c&quot; ");
    }

    #[test]
    fn ticks_leave_each_other_room() {
        let ticks = apart([100.0_f64, 104.0, 400.0, 50.0].map(|n| (n.log2(), n.to_string())).to_vec());
        let words: Vec<_> = ticks.iter().map(|(_, word)| word.as_str()).collect();
        assert_eq!(words, ["50", "100", "400"]);
    }
}
