//! Replies: a ruling, said in RESP.

use tollgate::{Part, Policy, Reason, Rule, Ruling, Settled, Verdict};

use crate::app::App;
use crate::resp::wire::Replies;

/// An answer that needs no decision.
pub(super) enum Reply<'w> {
    Simple(&'static str),
    Error(&'static str, String),
    Bulk(&'w [u8]),
    Text(Vec<u8>),
    Number(i64),
    Null,
    /// An empty list.
    Nothing,
    /// A setting by this name, which is empty.
    Setting(&'w [u8]),
    /// The answer to `HELLO`.
    Hello,
}

impl Reply<'_> {
    pub(super) fn write(self, to: &mut Replies) {
        match self {
            Reply::Simple(text) => to.simple(text),
            Reply::Error(code, text) => to.error(code, &text),
            Reply::Bulk(bytes) => to.bulk(bytes),
            Reply::Text(text) => to.bulk(&text),
            Reply::Number(number) => to.number(number),
            Reply::Null => to.null(),
            Reply::Nothing => to.array(0),
            Reply::Setting(name) => {
                to.map(1);
                to.bulk(name);
                to.bulk(b"");
            }
            Reply::Hello => hello(to),
        }
    }
}

fn hello(to: &mut Replies) {
    to.map(6);
    let protocol = if to.three { 3 } else { 2 };
    for (name, value) in [("server", "tollgate"), ("version", env!("CARGO_PKG_VERSION"))] {
        to.bulk(name.as_bytes());
        to.bulk(value.as_bytes());
    }
    to.bulk(b"proto");
    to.number(protocol);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        to.bulk(name.as_bytes());
        to.bulk(value.as_bytes());
    }
    to.bulk(b"modules");
    to.array(0);
}

/// The text of `INFO`.
pub(super) fn info(app: &App) -> Vec<u8> {
    let (version, generation) = (env!("CARGO_PKG_VERSION"), app.limiter.policies().generation);
    format!("# Server\r\nserver_name:tollgate\r\ntollgate_version:{version}\r\npolicies_generation:{generation}\r\n")
        .into_bytes()
}

/// Five numbers as redis-cell has them: limited, limit, remaining, seconds until a retry (-1 when there is nothing to wait
/// for), seconds until the key is as new. Seconds are rounded up, so that who waits as told is admitted.
pub(super) fn throttled(rule: &Rule, ruling: &Ruling, to: &mut Replies) {
    if is_no_verdict(ruling, to) {
        return;
    }
    if ruling.reason == Reason::Unavailable {
        to.error("UNAVAILABLE", "the count is out of reach; the fault is on this side");
        return;
    }
    let part = ruling.parts().next().map(|(_, part)| part);
    let seconds = |nanos: u64| signed(tollgate::contract::seconds(nanos));
    to.array(5);
    to.number(i64::from(!ruling.is_admit()));
    to.number(signed(rule.capacity()));
    to.number(part.map_or(0, |part| signed(part.outcome.remaining)));
    to.number(ruling.retry_after().map_or(-1, seconds));
    to.number(part.map_or(0, |part| seconds(part.outcome.reset_after)));
}

/// The answer to `TOLLGATE`: limited, limit, remaining, milliseconds until a retry, milliseconds until the subject is as new,
/// why, milliseconds to wait before going on, and whether the store could not answer. -1 stands for no such number.
pub(super) fn one(ruling: &Ruling, to: &mut Replies) {
    if is_no_verdict(ruling, to) {
        return;
    }
    let part = ruling.parts().next().map(|(_, part)| part);
    to.fields(8);
    standing(part, !ruling.is_admit(), ruling.retry_after(), to);
    whole(ruling, to);
}

/// The answer to `TOLLGATE.ALL`: limited, why, milliseconds to wait, whether the store could not answer, and for each policy its
/// name, limited, limit, remaining, milliseconds until a retry and until the subject is as new.
pub(super) fn all(ruling: &Ruling, to: &mut Replies) {
    if is_no_verdict(ruling, to) {
        return;
    }
    to.fields(5);
    to.named("limited");
    to.number(i64::from(!ruling.is_admit()));
    whole(ruling, to);
    to.named("policies");
    let parts: Vec<(&Policy, &Part)> = ruling.parts().collect();
    to.array(parts.len());
    for (policy, part) in parts {
        to.fields(6);
        to.named("policy");
        to.bulk(policy.name.as_bytes());
        let retry = match part.outcome.verdict {
            Verdict::Refuse { retry_after } | Verdict::Full { retry_after } => Some(retry_after),
            _ => None,
        };
        standing(Some(part), !part.outcome.verdict.is_admit(), retry, to);
    }
}

/// The answer to `TOLLGATE.RESERVE`: as to `TOLLGATE`, and the token (none when it was refused), milliseconds until it lapses, and
/// whether it had been reserved before.
pub(super) fn reserved(ruling: &Ruling, to: &mut Replies) {
    if is_no_verdict(ruling, to) {
        return;
    }
    let part = ruling.parts().next().map(|(_, part)| part);
    to.fields(11);
    standing(part, !ruling.is_admit(), ruling.retry_after(), to);
    whole(ruling, to);
    let reservation = ruling.reservation.as_ref();
    to.named("token");
    match reservation {
        Some(reservation) => to.bulk(reservation.token.as_bytes()),
        None => to.null(),
    }
    to.named("lapses_after_ms");
    to.number(reservation.map_or(-1, |made| milliseconds(made.ends.saturating_sub(ruling.now))));
    to.named("repeated");
    to.number(i64::from(reservation.is_some_and(|made| made.repeated)));
}

/// The answer to `TOLLGATE.SETTLE`: units given back, added, and dropped beyond the debt, and whether it had been settled before.
pub(super) fn settled(settled: Settled, to: &mut Replies) {
    let (given_back, added, dropped) = match settled {
        Settled::Now { given_back, added, dropped } => (given_back, added, dropped),
        Settled::Before => (0, 0, 0),
        Settled::Lapsed => {
            return to.error("LAPSED", "the reservation has lapsed: what it reserved stays charged");
        }
        Settled::Unknown => return to.error("NORESERVATION", "there is no such reservation here"),
        Settled::Unavailable => {
            return to.error("UNAVAILABLE", "the count is out of reach; it is safe to send the same again");
        }
    };
    to.fields(4);
    let numbers = [("given_back", given_back), ("added", added), ("dropped", dropped)];
    for (name, number) in numbers.into_iter().chain([("repeated", u64::from(settled == Settled::Before))]) {
        to.named(name);
        to.number(signed(number));
    }
}

fn standing(part: Option<&Part>, limited: bool, retry: Option<u64>, to: &mut Replies) {
    let fields = [
        ("limited", i64::from(limited)),
        ("limit", part.map_or(-1, |part| signed(part.outcome.limit))),
        ("remaining", part.map_or(-1, |part| signed(part.outcome.remaining))),
        ("retry_after_ms", retry.map_or(-1, milliseconds)),
        ("reset_after_ms", part.map_or(-1, |part| milliseconds(part.outcome.reset_after))),
    ];
    for (name, number) in fields {
        to.named(name);
        to.number(number);
    }
}

fn whole(ruling: &Ruling, to: &mut Replies) {
    to.named("reason");
    to.bulk(ruling.reason.name().as_bytes());
    to.named("wait_ms");
    to.number(milliseconds(ruling.wait()));
    to.named("fallback");
    to.number(i64::from(ruling.fallback.is_some()));
}

/// Whether nothing was decided, for what was asked was wrong: says so.
fn is_no_verdict(ruling: &Ruling, to: &mut Replies) -> bool {
    let name = ruling.scope().map_or("", |policy| &policy.name);
    let (code, text) = match ruling.reason {
        Reason::UnknownPolicy => {
            ("NOPOLICY", "there is no such policy; CL.THROTTLE needs one about this command".into())
        }
        Reason::NoReservations => ("ERR", format!("policy `{name}` takes no reservations")),
        Reason::NoSubject => ("NOSUBJECT", format!("policy `{name}` needs a subject, of at most 4096 bytes")),
        Reason::BadQuota => {
            let most = ruling.scope().map_or_else(String::new, |policy| policy.rule.quota().to_string());
            ("ERR", format!("policy `{name}` lets clients choose up to {most}"))
        }
        _ => return false,
    };
    to.error(code, &text);
    true
}

fn milliseconds(nanos: u64) -> i64 {
    signed(nanos.div_ceil(1_000_000))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
