//! What a policy does beyond yes and no, in sentences.

use tollgate::{Cost, OnResponse, Policy, RESPONSE_GRACE, show_duration};

/// Each of a policy's manners: its key, and what it says.
pub(super) fn manners(policy: &Policy) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(on) = &policy.response {
        lines.push(("response", response(policy, on)));
    }
    if let Some(ban) = &policy.ban {
        lines.push(("ban", format!(
            "{} refusals of a subject by one instance, in a window of {}, ban it (403) for {}, and for twice as long each time \
             after, up to {}; one ban is forgotten each {}; POST /v1/unban lifts it",
            ban.after(),
            show_duration(ban.within()),
            show_duration(ban.lasts(0)),
            show_duration(ban.lasts(u64::MAX)),
            show_duration(ban.forget()),
        )));
    }
    if policy.obey > 0 {
        lines.push(("obey", format!(
            "a 429 or 503 of the origin with Retry-After holds its subject (429) until then, at most {}; nobody else",
            show_duration(policy.obey)
        )));
    }
    if let Some(reserve) = &policy.reserve {
        lines.push(("reserve", format!(
            "what is reserved counts as charged; settled within {0}, what was not used comes back, so what is used keeps the promise with \
             t longer by {0}; up to {1} units more than were reserved are charged whatever is left, for each reservation; one that is never settled \
             stays charged; room for at least {2} of them within twice that time (where \
             the count is in the process or its file)",
            show_duration(reserve.within()),
            reserve.debt(),
            reserve.open(),
        )));
    }
    if policy.sample > 1 {
        lines.push(("sample", sample(policy)));
    }
    let bars = [("a ban", policy.ban.is_some()), ("a hold", policy.obey > 0)];
    let bars: Vec<&str> = bars.iter().filter(|(_, given)| *given).map(|(bar, _)| *bar).collect();
    if policy.placement.is_shared() && !bars.is_empty() {
        lines.push((
            "bars",
            format!(
                "whether there is {} is asked of the store together with the count: a second key in each check, which \
                 nobody else's check goes along with",
                bars.join(" or ")
            ),
        ));
    }
    lines
}

fn response(policy: &Policy, on: &OnResponse) -> String {
    let mut which = Vec::new();
    if !on.statuses.is_empty() {
        let range =
            |(from, to): &(u16, u16)| if from == to { from.to_string() } else { format!("{from}-{to}") };
        which.push(format!("status {}", on.statuses.iter().map(range).collect::<Vec<_>>().join(" or ")));
    }
    which.extend(on.headers.iter().map(|(name, value)| format!("{name}: {value}")));
    let which = if which.is_empty() {
        "every response counts".to_owned()
    } else {
        format!("{} counts", which.join(" and "))
    };
    let cost = match &on.cost {
        None => String::new(),
        Some(Cost::Fixed(cost)) => format!(", at {cost}"),
        Some(Cost::Header { name, max, default }) => {
            format!(", at what {name} says, 0 to {max}, {default} without it")
        }
        Some(Cost::Size { per, max }) => {
            format!(", at 1 for each started {per} bytes of the body, 1 to {max}")
        }
    };
    let when = if on.after {
        format!(
            "charged after: those that are under way when nothing is left outrun the promise, each by its cost; with n at once, at \
             most {} + n x cost + r x t",
            policy.rule.capacity()
        )
    } else {
        format!(
            "charged before at the most it may cost, and what it did not cost is given back, so those that are under way outrun \
             nothing: what counts keeps the promise, with t longer by {}",
            show_duration(RESPONSE_GRACE)
        )
    };
    format!("{which}{cost}; {when}; doors that see no response count every request")
}

/// The odds with which the sentence about samples is not kept.
const ODDS: f64 = 1e-6;

/// A draw each: of the requests that are admitted until so many were drawn, how many there are but for one time in a million.
fn at_most(drawn: u64, of: u64) -> u64 {
    // Of n requests, fewer than `drawn` are drawn with odds of at most exp(-n D(drawn / n || 1 / of)) (Chernoff).
    let unlikely = |n: u64| {
        let (share, odds) = (drawn as f64 / n as f64, 1.0 / of as f64);
        if share >= odds {
            return false;
        }
        let term = |a: f64, b: f64| if a > 0.0 { a * (a / b).ln() } else { 0.0 };
        let distance = term(share, odds) + term(1.0 - share, 1.0 - odds);
        (-(n as f64) * distance).exp() <= ODDS
    };
    let (mut low, mut high) =
        (drawn.max(1), drawn.max(1).saturating_mul(of).saturating_mul(64).saturating_add(1_000));
    while low < high {
        let middle = low.midpoint(high);
        if unlikely(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

fn sample(policy: &Policy) -> String {
    let cost = if let Cost::Fixed(cost) = policy.cost { cost } else { 1 };
    let fleet = if policy.placement.is_shared() {
        format!(
            "; each further instance admits under a flood up to {} more for each draw that is admitted",
            policy.sample.saturating_sub(1)
        )
    } else {
        String::new()
    };
    let drawn = policy.rule.capacity() / cost.saturating_mul(policy.sample).max(1);
    format!(
        "one request in {0} is charged, for {0}; the others only look whether that is there. What is charged keeps the promise \
         exactly, what is admitted keeps it as draws do: at once from cold {1} on average, more than {2} less than once in a million times{fleet}",
        policy.sample,
        drawn.saturating_mul(policy.sample),
        at_most(drawn, policy.sample),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odds_of_a_sample_are_what_they_are_said_to_be() {
        for (drawn, of) in [(1, 2), (10, 10), (100, 10), (50, 100)] {
            let most = at_most(drawn, of);
            let mut random = fastrand::Rng::with_seed(drawn);
            let mut longest = 0;
            for _ in 0..20_000 {
                let mut admitted = 0;
                for _ in 0..drawn {
                    while random.u64(0..of) != 0 {
                        admitted += 1;
                    }
                    admitted += 1;
                }
                longest = longest.max(admitted);
            }
            assert!(longest <= most, "{longest} of at most {most}: {drawn} drawn of 1/{of}");
            assert!(most < longest * 2 + 20 * of, "{most} is no use where {longest} were seen");
        }
    }
}
