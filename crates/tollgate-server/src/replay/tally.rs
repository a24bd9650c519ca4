//! What is counted in a replay, by policy and by subject.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};
use tollgate::{Fingerprint, Policies, Policy, Request, Ruling, SECOND};

/// The most points of a timeline.
pub(super) const MAX_BINS: u64 = 90;

/// Widths of a point, in seconds: people's own, so that nothing that comes every hour beats against them.
const WIDTHS: [u64; 14] =
    [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000, 31_536_000];

/// How many of the most refused subjects are named.
pub(super) const MOST_REFUSED: usize = 10;

/// The count so far.
#[derive(Debug)]
pub struct Tally {
    policies: Vec<Counted>,
    first: u64,
    width: u64,
    last: u64,
    requests: u64,
    admitted: u64,
    /// Requests that no policy is about.
    unmet: u64,
    /// Requests that were refused without a count: no subject, a deny list, a cost that is no number.
    uncounted: u64,
}

#[derive(Debug, Default)]
struct Counted {
    requests: u64,
    admitted: u64,
    refused: u64,
    bins: Vec<(u64, u64)>,
    subjects: HashMap<Fingerprint, Subject>,
}

#[derive(Debug, Default)]
struct Subject {
    name: String,
    requests: u64,
    refused: u64,
    first_refusal: u64,
    /// The most of the capacity that was ever used, in thousandths.
    peak: u64,
    /// Times of its requests within one window, and the most that there ever were.
    recent: VecDeque<u64>,
    busiest: u64,
}

/// What came out.
#[derive(Debug)]
pub struct Report {
    /// One part for each policy.
    pub policies: Vec<PolicyReport>,
    /// The first instant, in nanoseconds since the epoch.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// What one point of the timelines spans, in nanoseconds.
    pub width: u64,
    /// All requests.
    pub requests: u64,
    /// Those that went through.
    pub admitted: u64,
    /// Those that no policy is about.
    pub unmet: u64,
    /// Those refused without a count.
    pub uncounted: u64,
    /// Lines that tell of no request.
    pub broken: u64,
}

/// What came out for one policy.
#[derive(Debug)]
pub struct PolicyReport {
    /// Its name.
    pub name: String,
    /// Its quota and algorithm.
    pub quota: String,
    /// Whether it only watches.
    pub shadow: bool,
    /// Its window as text.
    pub window: String,
    /// Requests that met it.
    pub requests: u64,
    /// Of those, admitted by all that they met (for one that only watches: by it).
    pub admitted: u64,
    /// Of those, refused by it. The rest were refused by others, and not charged.
    pub refused: u64,
    /// Subjects seen.
    pub subjects: u64,
    /// Subjects refused at least once.
    pub subjects_refused: u64,
    /// Subjects that ever used 50, 90 and 100 % of their capacity.
    pub reached: [u64; 3],
    /// Requests of a subject in its busiest window: at the 50th, 90th and 99th percentile of subjects, and the most.
    pub busiest: [u64; 4],
    /// Subjects by the most of their capacity that they ever used, in tenths; the last holds those that used all.
    pub peaks: [u64; 11],
    /// Admitted and refused, over time.
    pub bins: Vec<(u64, u64)>,
    /// The most refused: name, requests, refused, first refusal.
    pub most_refused: Vec<(String, u64, u64, u64)>,
}

impl Tally {
    /// Nothing counted yet, between two instants.
    pub fn new(policies: &Policies, (first, last): (u64, u64)) -> Self {
        let fits = |width: &u64| last / (width * SECOND) - first / (width * SECOND) < MAX_BINS;
        let width =
            WIDTHS.into_iter().find(fits).map_or((last - first) / MAX_BINS + 1, |width| width * SECOND);
        let bins = usize::try_from(last / width - first / width + 1).unwrap_or(1);
        let counted = policies.iter().map(|_| Counted { bins: vec![(0, 0); bins], ..Counted::default() });
        let policies = counted.collect();
        Tally { policies, first, width, last, requests: 0, admitted: 0, unmet: 0, uncounted: 0 }
    }

    /// Counts one request.
    pub fn add(&mut self, policies: &Policies, request: &Request<'_>, ruling: &Ruling) {
        self.requests += 1;
        self.admitted += u64::from(ruling.is_admit());
        let parts: Vec<_> = ruling.parts().chain(ruling.shadows()).collect();
        if parts.is_empty() {
            if ruling.is_admit() {
                self.unmet += 1;
            } else {
                self.uncounted += 1;
            }
            return;
        }
        let bin = usize::try_from(ruling.now / self.width - self.first / self.width).unwrap_or(0);
        for (policy, part) in parts {
            let Some(ready) = policies.named(&policy.name) else { continue };
            let Some(counted) = self.policies.get_mut(usize::from(ready.index)) else { continue };
            let refused = u64::from(!part.outcome.verdict.is_admit());
            counted.requests += 1;
            counted.refused += refused;
            let charged = refused == 0 && (policy.shadow || ruling.is_admit());
            counted.admitted += u64::from(charged);
            if let Some((through, not)) = counted.bins.get_mut(bin) {
                (*through, *not) = (*through + 1 - refused, *not + refused);
            }
            let subject = counted
                .subjects
                .entry(part.key)
                .or_insert_with(|| Subject { name: named(policies, policy, request), ..Subject::default() });
            let used = part.outcome.limit - part.outcome.remaining.min(part.outcome.limit);
            subject.add(
                ruling.now,
                policy.rule.quota().window(),
                refused,
                used * 1_000 / part.outcome.limit.max(1),
            );
        }
    }

    /// The end of the count.
    pub fn report(self, policies: &Policies, broken: u64) -> Report {
        let parts = self.policies.into_iter().zip(policies.iter());
        Report {
            policies: parts.map(|(counted, ready)| counted.report(&ready.policy)).collect(),
            first: self.first,
            last: self.last,
            width: self.width,
            requests: self.requests,
            admitted: self.admitted,
            unmet: self.unmet,
            uncounted: self.uncounted,
            broken,
        }
    }
}

/// The subject of a request under a policy, in the log's own words.
fn named(policies: &Policies, policy: &Policy, request: &Request<'_>) -> String {
    let met = policies.explain(request);
    let own = met.into_iter().find(|(ready, _)| ready.policy.name == policy.name);
    own.and_then(|(_, found)| found).map(|(_, subject)| subject).unwrap_or_default()
}

impl Subject {
    fn add(&mut self, now: u64, window: u64, refused: u64, used: u64) {
        self.requests += 1;
        if refused > 0 && self.refused == 0 {
            self.first_refusal = now;
        }
        self.refused += refused;
        self.peak = self.peak.max(if refused > 0 { 1_000 } else { used });
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|time| time + window <= now) {
            self.recent.pop_front();
        }
        self.busiest = self.busiest.max(self.recent.len() as u64);
    }
}

impl Counted {
    fn report(self, policy: &Policy) -> PolicyReport {
        let mut subjects: Vec<Subject> = self.subjects.into_values().collect();
        let reached = |share| subjects.iter().filter(|subject| subject.peak >= share).count() as u64;
        let reached = [reached(500), reached(900), reached(1_000)];
        let mut peaks = [0; 11];
        for subject in &subjects {
            peaks[usize::try_from(subject.peak / 100).unwrap_or(10).min(10)] += 1;
        }
        let mut busiest: Vec<u64> = subjects.iter().map(|subject| subject.busiest).collect();
        busiest.sort_unstable();
        let at = |percent: usize| {
            let rank = (busiest.len() * percent).div_ceil(100).max(1);
            busiest.get(rank - 1).copied().unwrap_or(0)
        };
        let busiest = [at(50), at(90), at(99), at(100)];
        subjects.sort_by(|a, b| (b.refused, b.requests, &a.name).cmp(&(a.refused, a.requests, &b.name)));
        let refused = subjects.iter().filter(|subject| subject.refused > 0);
        let subjects_refused = refused.clone().count() as u64;
        let most =
            refused.take(MOST_REFUSED).map(|s| (s.name.clone(), s.requests, s.refused, s.first_refusal));
        PolicyReport {
            name: policy.name.clone(),
            quota: format!("{}, {}", policy.rule.quota(), policy.rule.algorithm()),
            shadow: policy.shadow,
            window: tollgate::show_duration(policy.rule.quota().window()).to_string(),
            requests: self.requests,
            admitted: self.admitted,
            refused: self.refused,
            subjects: subjects.len() as u64,
            subjects_refused,
            reached,
            busiest,
            peaks,
            bins: self.bins,
            most_refused: most.collect(),
        }
    }
}

impl Report {
    /// The report for a program.
    pub fn json(&self) -> Value {
        let policies: Vec<Value> = self.policies.iter().map(PolicyReport::json).collect();
        json!({
            "policies": policies,
            "totals": {
                "requests": self.requests,
                "admitted": self.admitted,
                "refused": self.requests - self.admitted,
                "unmet": self.unmet,
                "uncounted": self.uncounted,
                "broken_lines": self.broken,
            },
            "first": seconds(self.first),
            "last": seconds(self.last),
            "timeline_step": self.width / SECOND,
        })
    }
}

impl PolicyReport {
    /// Requests that it would have admitted, and another policy refused.
    pub fn uncharged(&self) -> u64 {
        self.requests - self.admitted - self.refused
    }

    fn json(&self) -> Value {
        let most: Vec<Value> = self
            .most_refused
            .iter()
            .map(|(name, requests, refused, first)| {
                json!({ "subject": name, "requests": requests, "refused": refused, "first_refused": seconds(*first) })
            })
            .collect();
        json!({
            "policy": self.name,
            "quota": self.quota,
            "shadow": self.shadow,
            "requests": self.requests,
            "admitted": self.admitted,
            "refused": self.refused,
            "uncharged": self.uncharged(),
            "subjects": self.subjects,
            "subjects_refused": self.subjects_refused,
            "subjects_reaching": { "50": self.reached[0], "90": self.reached[1], "100": self.reached[2] },
            "busiest_window": {
                "p50": self.busiest[0], "p90": self.busiest[1], "p99": self.busiest[2], "max": self.busiest[3],
            },
            "most_refused": most,
            "timeline": self.bins.iter().map(|(admitted, refused)| json!([admitted, refused])).collect::<Vec<_>>(),
        })
    }
}

fn seconds(nanos: u64) -> f64 {
    (nanos / 1_000_000) as f64 / 1_000.0
}
