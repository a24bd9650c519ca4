//! The report for a terminal.

use time::OffsetDateTime;
use time::macros::format_description;

use crate::replay::Report;
use crate::replay::tally::PolicyReport;

pub(super) fn show(report: &Report) -> String {
    let refused = report.requests - report.admitted;
    let mut text = format!(
        "{} requests from {} to {}: {} admitted, {refused} refused ({})\n",
        report.requests,
        clock(report.first),
        clock(report.last),
        report.admitted,
        share(refused, report.requests)
    );
    for (count, what) in [
        (report.unmet, "requests met no policy"),
        (
            report.uncounted,
            "requests were refused without a count: no subject, a deny list, or a cost that is no number",
        ),
        (report.broken, "lines could not be read"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    report.policies.iter().for_each(|policy| text += &show_policy(policy));
    text
}

fn show_policy(policy: &PolicyReport) -> String {
    let shadow = if policy.shadow { ", shadow" } else { "" };
    let mut text = format!(
        "\npolicy {} ({}{shadow})\n  requests   {}: {} admitted, {} refused ({}){}\n",
        policy.name,
        policy.quota,
        policy.requests,
        policy.admitted,
        policy.refused,
        share(policy.refused, policy.requests),
        match policy.uncharged() {
            0 => String::new(),
            others => format!(", {others} refused by others"),
        }
    );
    let of = |count| share(count, policy.subjects);
    text += &format!(
        "  subjects   {}: {} refused at least once ({})\n  ever used  50 % of the limit: {}; 90 %: {}; all of it: {}\n",
        policy.subjects,
        policy.subjects_refused,
        of(policy.subjects_refused),
        of(policy.reached[0]),
        of(policy.reached[1]),
        of(policy.reached[2])
    );
    let [p50, p90, p99, most] = policy.busiest;
    text += &format!(
        "  a subject's busiest {}: {p50} requests at the median, {p90} at 90 %, {p99} at 99 %, {most} at most\n",
        policy.window
    );
    if !policy.most_refused.is_empty() {
        text += &format!("  {:<40} {:>9} {:>9}  first refused\n", "most refused", "requests", "refused");
        for (name, requests, refused, first) in &policy.most_refused {
            let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).take(40).collect();
            text += &format!("  {name:<40} {requests:>9} {refused:>9}  {}\n", clock(*first));
        }
    }
    text
}

pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

pub(super) fn clock(nanos: u64) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z");
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(nanos)).ok();
    time.and_then(|time| time.format(&format).ok()).unwrap_or_default()
}
