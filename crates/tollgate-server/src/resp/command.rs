//! Commands: what each means, and what a connection has to remember.

use tollgate::{Asked, Check, MAX_ID_BYTES, Quota, Reserved, Rule, Ruling, SECOND, Throttle};

use crate::admin::same;
use crate::app::App;
use crate::resp::DOOR;
use crate::resp::reply::{self, Reply};
use crate::resp::wire::{Replies, Words};

/// The most checks of one `TOLLGATE.ALL`.
const MAX_CHECKS: usize = tollgate::MAX_CHARGES;

/// The wrong passwords that one connection may try.
const MAX_FAILURES: u32 = 3;

/// What a connection has agreed on.
#[derive(Debug)]
pub(super) struct Session {
    /// Whether RESP3 is spoken.
    pub(super) three: bool,
    known: bool,
    name: Vec<u8>,
    failures: u32,
}

/// What a command comes to.
pub(super) enum Command<'w> {
    /// Something to decide.
    Ask(Question<'w>),
    /// An answer that needs no decision.
    Here(Reply<'w>),
    /// A reservation to settle, by its token, at what was used.
    Settle(&'w str, u64),
    /// Goodbye.
    Quit,
    /// Nothing more is heard.
    CutOff,
}

/// Something to decide.
#[derive(Debug)]
pub(super) enum Question<'w> {
    /// `CL.THROTTLE`.
    Throttle { key: &'w [u8], rule: Rule, cost: u64 },
    /// `TOLLGATE`.
    One(Check<'w>),
    /// `TOLLGATE.ALL`.
    All(Vec<Check<'w>>),
    /// `TOLLGATE.RESERVE`.
    Reserve(Reserved<'w>),
}

impl Session {
    pub(super) fn new(app: &App) -> Self {
        Session { three: false, known: app.settings.resp_password.is_none(), name: Vec::new(), failures: 0 }
    }

    pub(super) fn read<'w>(&mut self, app: &App, words: &'w Words) -> Command<'w> {
        if self.failures >= MAX_FAILURES {
            return Command::CutOff;
        }
        let name = words.get(0).unwrap_or_default();
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        // A page in somebody's browser can send a form here, of which the body would be read as commands.
        if is("POST") || is("HOST:") {
            tracing::warn!(audit = "denied", door = "resp", "HTTP where RESP is spoken");
            return Command::CutOff;
        }
        let reply = if is("HELLO") {
            self.hello(app, words)
        } else if is("AUTH") {
            self.auth(app, words)
        } else if is("QUIT") {
            return Command::Quit;
        } else if !self.known {
            Reply::Error("NOAUTH", "Authentication required.".to_owned())
        } else if let Some(read) = question(name) {
            match read(words) {
                Ok(question) => return Command::Ask(question),
                Err(error) => Reply::Error("ERR", error),
            }
        } else if is("TOLLGATE.SETTLE") {
            match settlement(words) {
                Ok((token, used)) => return Command::Settle(token, used),
                Err(error) => Reply::Error("ERR", error),
            }
        } else {
            self.about_the_connection(app, words)
        };
        Command::Here(reply)
    }

    fn hello<'w>(&mut self, app: &App, words: &'w Words) -> Reply<'w> {
        let three = match words.get(1) {
            None => self.three,
            Some(b"2") => false,
            Some(b"3") => true,
            Some(_) => return Reply::Error("NOPROTO", "unsupported protocol version".to_owned()),
        };
        let (mut at, mut name) = (2, None);
        let mut known = self.known;
        while let Some(option) = words.get(at) {
            match (words.get(at + 1), words.get(at + 2)) {
                (Some(user), Some(password)) if option.eq_ignore_ascii_case(b"AUTH") => {
                    if let Err(error) = may(app, user, password) {
                        self.failures += 1;
                        return error;
                    }
                    (known, at) = (true, at + 3);
                }
                (Some(value), _) if option.eq_ignore_ascii_case(b"SETNAME") => {
                    (name, at) = (Some(value), at + 2);
                }
                _ => return Reply::Error("ERR", "Syntax error in HELLO".to_owned()),
            }
        }
        if !known {
            let how =
                "HELLO must be called with the client already authenticated, or with AUTH user password.";
            return Reply::Error("NOAUTH", how.to_owned());
        }
        (self.three, self.known) = (three, known);
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        Reply::Hello
    }

    fn auth<'w>(&mut self, app: &App, words: &'w Words) -> Reply<'w> {
        let tried = match (words.get(1), words.get(2), words.len()) {
            (Some(password), None, 2) => may(app, b"default", password),
            (Some(user), Some(password), 3) => may(app, user, password),
            _ => return arity("AUTH"),
        };
        match tried {
            Ok(()) => {
                self.known = true;
                Reply::Simple("OK")
            }
            Err(error) => {
                self.failures += 1;
                error
            }
        }
    }

    /// What clients send of themselves, and what people type.
    fn about_the_connection<'w>(&mut self, app: &App, words: &'w Words) -> Reply<'w> {
        let name = words.get(0).unwrap_or_default().to_ascii_uppercase();
        let sub = words.get(1).unwrap_or_default().to_ascii_uppercase();
        match (name.as_slice(), sub.as_slice(), words.len()) {
            (b"PING", _, 1) => Reply::Simple("PONG"),
            (b"PING" | b"ECHO", _, 2) => Reply::Bulk(words.get(1).unwrap_or_default()),
            (b"SELECT", b"0", 2) => Reply::Simple("OK"),
            (b"SELECT", ..) => Reply::Error("ERR", "there is one database, 0".to_owned()),
            (b"RESET", _, 1) => {
                *self = Session { failures: self.failures, ..Session::new(app) };
                Reply::Simple("RESET")
            }
            (b"CLIENT", b"SETNAME", 3) => {
                self.name = words.get(2).unwrap_or_default().to_vec();
                Reply::Simple("OK")
            }
            (b"CLIENT", b"SETINFO", 4) => Reply::Simple("OK"),
            (b"CLIENT", b"GETNAME", 2) if self.name.is_empty() => Reply::Null,
            (b"CLIENT", b"GETNAME", 2) => Reply::Text(self.name.clone()),
            (b"CLIENT", b"ID", 2) => Reply::Number(1),
            // Whoever looks for settings of a data store finds none of them set.
            (b"CONFIG", b"GET", 3) => Reply::Setting(words.get(2).unwrap_or_default()),
            (b"COMMAND", ..) => Reply::Nothing,
            (b"INFO", ..) => Reply::Text(reply::info(app)),
            (b"THROTTLE", ..) => Reply::Error(
                "ERR",
                "THROTTLE answers in another order and polarity; use CL.THROTTLE, or TOLLGATE policy subject [cost]"
                    .to_owned(),
            ),
            _ => {
                let shown = String::from_utf8_lossy(&name);
                let shown: String = shown.chars().take(64).collect();
                Reply::Error("ERR", format!("unknown command '{shown}', or not with these arguments"))
            }
        }
    }
}

/// Whether this user with this password may ask.
fn may(app: &App, user: &[u8], password: &[u8]) -> Result<(), Reply<'static>> {
    let Some(wanted) = &app.settings.resp_password else {
        return Err(Reply::Error("ERR", "there is no password to give: none is configured".to_owned()));
    };
    if user == b"default" && same(password, wanted.as_bytes()) {
        return Ok(());
    }
    tracing::warn!(audit = "denied", door = "resp", "a wrong user or password");
    Err(Reply::Error("WRONGPASS", "invalid username-password pair or user is disabled.".to_owned()))
}

fn arity(name: &str) -> Reply<'static> {
    Reply::Error("ERR", format!("wrong number of arguments for '{name}'"))
}

/// Reads a command that asks something.
type Reader = for<'w> fn(&'w Words) -> Result<Question<'w>, String>;

/// What reads a command that asks something, if this is one.
fn question(name: &[u8]) -> Option<Reader> {
    match name.to_ascii_uppercase().as_slice() {
        b"CL.THROTTLE" => Some(throttle),
        b"TOLLGATE" => Some(check),
        b"TOLLGATE.ALL" => Some(checks),
        b"TOLLGATE.RESERVE" => Some(reservation),
        _ => None,
    }
}

/// `TOLLGATE.RESERVE policy subject cost id`.
fn reservation<'w>(words: &'w Words) -> Result<Question<'w>, String> {
    if words.len() != 5 {
        return Err("wrong number of arguments; TOLLGATE.RESERVE policy subject cost id".to_owned());
    }
    let Check { policy, subject, cost } = one(words, 1)?;
    let units = cost.and_then(|cost| u64::try_from(cost).ok()).filter(|units| *units > 0);
    let units = units.ok_or_else(|| "cost: expected a whole number of at least 1".to_owned())?;
    let id = words.get(4).unwrap_or_default();
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(format!("id: expected 1 to {MAX_ID_BYTES} bytes"));
    }
    Ok(Question::Reserve(Reserved { policy, subject, units, id }))
}

/// `TOLLGATE.SETTLE token cost`.
fn settlement(words: &Words) -> Result<(&str, u64), String> {
    let text = |at: usize| words.get(at).and_then(|word| std::str::from_utf8(word).ok());
    let (3, Some(token), Some(used)) = (words.len(), text(1), text(2)) else {
        return Err("wrong number of arguments; TOLLGATE.SETTLE token cost".to_owned());
    };
    let used = used.parse().map_err(|_| "cost: expected a whole number of at least 0".to_owned())?;
    Ok((token, used))
}

/// `CL.THROTTLE key max_burst count period [quantity]`.
fn throttle<'w>(words: &'w Words) -> Result<Question<'w>, String> {
    if !(5..=6).contains(&words.len()) {
        return Err("wrong number of arguments; CL.THROTTLE key max_burst count period [quantity]".to_owned());
    }
    let number = |at: usize, name: &str, least: u64| {
        let word = words.get(at).unwrap_or_default();
        let number = std::str::from_utf8(word).ok().and_then(|word| word.parse::<u64>().ok());
        let number = number.filter(|number| *number >= least && i64::try_from(*number).is_ok());
        number.ok_or_else(|| format!("{name}: expected a whole number of at least {least}"))
    };
    let burst = number(2, "max_burst", 0)?.saturating_add(1);
    let (count, period) = (number(3, "count", 1)?, number(4, "period", 1)?);
    let quantity = if words.len() == 6 { number(5, "quantity", 0)? } else { 1 };
    let quota =
        Quota::new(count, period.saturating_mul(SECOND), burst, 0).map_err(|error| error.to_string())?;
    Ok(Question::Throttle {
        key: words.get(1).unwrap_or_default(),
        rule: Rule::gcra(quota).stated(),
        cost: quantity,
    })
}

/// `TOLLGATE policy subject [cost]`.
fn check<'w>(words: &'w Words) -> Result<Question<'w>, String> {
    match words.len() {
        3 => Ok(Question::One(Check { cost: None, ..one(words, 1)? })),
        4 => Ok(Question::One(one(words, 1)?)),
        _ => Err("wrong number of arguments; TOLLGATE policy subject [cost]".to_owned()),
    }
}

/// `TOLLGATE.ALL policy subject cost [policy subject cost ...]`.
fn checks<'w>(words: &'w Words) -> Result<Question<'w>, String> {
    let count = (words.len() - 1) / 3;
    if words.len() % 3 != 1 || !(1..=MAX_CHECKS).contains(&count) {
        return Err(format!(
            "wrong number of arguments; TOLLGATE.ALL policy subject cost [policy subject cost ...], at most {MAX_CHECKS} times"
        ));
    }
    Ok(Question::All((0..count).map(|n| one(words, 1 + 3 * n)).collect::<Result<_, _>>()?))
}

fn one<'w>(words: &'w Words, at: usize) -> Result<Check<'w>, String> {
    let text = |at: usize, name: &str| {
        let word = words.get(at).unwrap_or_default();
        std::str::from_utf8(word).map_err(|_| format!("{name}: expected UTF-8"))
    };
    let cost = match words.get(at + 2) {
        Some(_) => {
            let cost = text(at + 2, "cost")?.parse::<i64>();
            Some(cost.map_err(|_| "cost: expected a whole number; 0 looks, less gives back".to_owned())?)
        }
        None => None,
    };
    Ok(Check { policy: text(at, "policy")?, subject: text(at + 1, "subject")?, cost })
}

impl Question<'_> {
    /// Whether another that came later may be decided at the same time: not where the order would show.
    pub(super) fn may_go_with(&self, later: &Question<'_>) -> bool {
        match (self, later) {
            (Question::Throttle { key, rule, cost }, Question::Throttle { key: k, rule: r, cost: c }) => {
                key != k || (rule == r && cost == c)
            }
            (Question::One(check), Question::One(later)) => {
                (check.policy, check.subject) != (later.policy, later.subject) || check == later
            }
            (Question::Throttle { .. }, _) | (_, Question::Throttle { .. }) => true,
            _ => false,
        }
    }

    pub(super) async fn ask(&self, app: &App) -> Ruling {
        match self {
            Question::Throttle { key, rule, cost } => {
                app.decide(DOOR, &[Asked::Throttle(Throttle { key, rule, cost: *cost })]).await
            }
            Question::One(check) => app.decide(DOOR, &[Asked::Check(*check)]).await,
            Question::All(checks) => {
                let asked: Vec<Asked<'_>> = checks.iter().map(|check| Asked::Check(*check)).collect();
                app.decide(DOOR, &asked).await
            }
            Question::Reserve(reserved) => app.decide(DOOR, &[Asked::Reserve(*reserved)]).await,
        }
    }

    pub(super) fn answer(&self, ruling: &Ruling, replies: &mut Replies) {
        match self {
            Question::Throttle { rule, .. } => reply::throttled(rule, ruling, replies),
            Question::One(_) => reply::one(ruling, replies),
            Question::All(_) => reply::all(ruling, replies),
            Question::Reserve(_) => reply::reserved(ruling, replies),
        }
    }
}
