//! The report as one page that needs nothing else: no script, no font, no request.

use std::fmt::Write;

use tollgate::show_duration;

use crate::replay::Report;
use crate::replay::tally::PolicyReport;
use crate::replay::text::{clock, share};

const STYLE: &str = include_str!("page.css");
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 160.0;

pub(super) fn show(report: &Report) -> String {
    let refused = report.requests - report.admitted;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Tollgate replay</title><style>{STYLE}</style></head><body><main>\
         <h1>Replay</h1><p>{} to {}</p>{}",
        clock(report.first),
        clock(report.last),
        figures(&[
            ("requests", report.requests.to_string()),
            ("admitted", report.admitted.to_string()),
            ("refused", format!("{refused} ({})", share(refused, report.requests))),
            ("met no policy", report.unmet.to_string()),
            ("refused uncounted", report.uncounted.to_string()),
            ("lines not read", report.broken.to_string()),
        ])
    );
    for policy in &report.policies {
        page += &section(policy, report);
    }
    page + "</main></body></html>\n"
}

fn section(policy: &PolicyReport, report: &Report) -> String {
    let shadow = if policy.shadow { " <small>shadow</small>" } else { "" };
    let of = |count| share(count, policy.subjects);
    let [p50, p90, p99, most] = policy.busiest;
    let mut text = format!(
        "<section><h2>{}{shadow}</h2><p class=\"quota\">{}</p>{}",
        escape(&policy.name),
        escape(&policy.quota),
        figures(&[
            ("requests", policy.requests.to_string()),
            ("refused", format!("{} ({})", policy.refused, share(policy.refused, policy.requests))),
            ("subjects", policy.subjects.to_string()),
            ("ever refused", format!("{} ({})", policy.subjects_refused, of(policy.subjects_refused))),
        ])
    );
    text += "<h3>Over time</h3>";
    text += &timeline(policy, report);
    let _infallible = write!(
        text,
        "<h3>How tight it is</h3><p>Of the subjects, {} ever used half of the limit, {} used 90 %, {} all of it. \
         In its busiest {} a subject made {p50} requests at the median, {p90} at the 90th percentile, {p99} at the \
         99th, {most} at most.</p>",
        of(policy.reached[0]),
        of(policy.reached[1]),
        of(policy.reached[2]),
        escape(&policy.window)
    );
    text += &peaks(policy);
    if !policy.most_refused.is_empty() {
        text += "<h3>Most refused</h3><div class=\"wide\"><table><thead><tr><th>subject</th><th>requests</th>\
                 <th>refused</th><th>first refused</th></tr></thead><tbody>";
        for (name, requests, refused, first) in &policy.most_refused {
            let (name, first) = (escape(name), clock(*first));
            let _infallible =
                write!(text, "<tr><td>{name}</td><td>{requests}</td><td>{refused}</td><td>{first}</td></tr>");
        }
        text += "</tbody></table></div>";
    }
    text + "</section>"
}

fn figures(list: &[(&str, String)]) -> String {
    let items: String =
        list.iter().map(|(name, value)| format!("<div><dt>{name}</dt><dd>{value}</dd></div>")).collect();
    format!("<dl>{items}</dl>")
}

/// Admitted and refused requests over time, refused on top.
fn timeline(policy: &PolicyReport, report: &Report) -> String {
    let most = policy.bins.iter().map(|(admitted, refused)| admitted + refused).max().unwrap_or(0).max(1);
    let step = WIDTH / policy.bins.len().max(1) as f64;
    let scale = HEIGHT / most as f64;
    let mut bars = String::new();
    for (index, (admitted, refused)) in policy.bins.iter().enumerate() {
        let (x, width) = (index as f64 * step, step - 1.0);
        let (low, high) = (*admitted as f64 * scale, *refused as f64 * scale);
        let title = format!("<title>{admitted} admitted, {refused} refused</title>");
        let _infallible = write!(
            bars,
            "<g>{title}<rect class=\"admitted\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{low:.1}\"/>\
             <rect class=\"refused\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{high:.1}\"/></g>",
            HEIGHT - low,
            HEIGHT - low - high
        );
    }
    let ends = [clock(report.first), clock(report.last)];
    let step = show_duration(report.width);
    let label = format!("Requests over time, a bar for each {step}, at most {most} in one");
    let legend = format!(
        "<p class=\"legend\">A bar for each {step}: <span class=\"admitted\"></span> admitted \
         <span class=\"refused\"></span> refused</p>"
    );
    legend + &plot(&bars, &label, &format!("{most}"), &ends)
}

/// How many subjects used how much of their limit at most.
fn peaks(policy: &PolicyReport) -> String {
    let most = policy.peaks.iter().max().copied().unwrap_or(0).max(1);
    let step = WIDTH / policy.peaks.len() as f64;
    let mut bars = String::new();
    for (tenth, subjects) in policy.peaks.iter().enumerate() {
        let height = *subjects as f64 * (HEIGHT - 16.0) / most as f64;
        let x = tenth as f64 * step;
        let class = if tenth == 10 { "refused" } else { "admitted" };
        let range =
            if tenth == 10 { "all".to_owned() } else { format!("{} to {} %", tenth * 10, tenth * 10 + 10) };
        let _infallible = write!(
            bars,
            "<g><title>{subjects} subjects used {range}</title><rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" \
             width=\"{:.1}\" height=\"{height:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\">{subjects}</text></g>",
            HEIGHT - height,
            step - 4.0,
            x + step / 2.0 - 2.0,
            HEIGHT - height - 4.0
        );
    }
    let ends = ["0 % of the limit used at most".to_owned(), "all of it".to_owned()];
    plot(&bars, "Subjects by the most of the limit that they ever used", "", &ends)
}

fn plot(bars: &str, label: &str, top: &str, ends: &[String; 2]) -> String {
    let [from, to] = ends;
    format!(
        "<figure><svg viewBox=\"0 -4 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{label}\">\
         <line x1=\"0\" y1=\"{HEIGHT}\" x2=\"{WIDTH}\" y2=\"{HEIGHT}\"/>{bars}<text class=\"top\" x=\"4\" y=\"10\">{top}</text></svg>\
         <figcaption><span>{from}</span><span>{to}</span></figcaption></figure>",
        HEIGHT + 6.0
    )
}

/// Text as it is, whatever it holds: a log's subjects are written by strangers.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '&' => safe += "&amp;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            c if c.is_control() => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #[test]
    fn hostile_text_stays_text() {
        assert_eq!(super::escape("<b a='1'>&\"\u{7}"), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;?");
    }
}
