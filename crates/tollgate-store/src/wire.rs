//! What the script on a Redis is told, and what its answer says.

use ::redis::{Cmd, Value};
use arrayvec::ArrayVec;
use tollgate_core::{Charge, Rule, SECOND, Shape};

use crate::remote::{Found, Question, Reply};

pub(crate) fn pair(command: &mut Cmd, nanos: u64) -> &mut Cmd {
    command.arg(nanos / SECOND).arg(nanos % SECOND)
}

pub(crate) fn charge_arguments(command: &mut Cmd, charge: &Charge<'_>, rule_text: &str) {
    let rule = charge.rule;
    let (interval, capacity, anchor) = rule.terms();
    let (shape, window) = match rule.shape() {
        Shape::Cell => ("cell", anchor),
        Shape::Counter => ("counter", rule.quota().window()),
        Shape::Log => ("log", rule.quota().window()),
    };
    command.arg(rule_text).arg(shape);
    let span = |units: u64| units.saturating_mul(interval);
    for nanos in [span(charge.cost), capacity, window, charge.phase(), span(charge.spare)] {
        pair(command, nanos);
    }
    command.arg(rule.quota().limit()).arg(charge.cost).arg(charge.spare);
}

/// The shape of a state that was found under this rule, which is the charge's when it is empty.
pub(crate) fn shape_of(rule: &str, charge: &Charge<'_>) -> Shape {
    let other = if rule.is_empty() { None } else { rule.parse::<Rule>().ok() };
    other.map_or(charge.rule.shape(), |rule| rule.shape())
}

/// Numbers as the script writes them: every time as a pair.
pub(crate) fn text(shape: Shape, numbers: &[u64]) -> String {
    let pairs = if shape == Shape::Log { numbers.len() } else { 1 };
    let each = numbers.iter().enumerate().map(|(index, number)| {
        if index < pairs { format!("{} {}", number / SECOND, number % SECOND) } else { number.to_string() }
    });
    each.collect::<Vec<_>>().join(" ")
}

/// What [`text`] writes.
fn numbers(shape: Shape, text: &str) -> Option<Vec<u64>> {
    let mut words = text.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    let mut numbers = Vec::with_capacity(if shape == Shape::Log { text.len() / 20 } else { 3 });
    while let Some(seconds) = words.next() {
        // Of a log every number is a pair, else the first.
        let pair = shape == Shape::Log || numbers.is_empty();
        let number = if pair { seconds?.checked_mul(SECOND)?.checked_add(words.next()??)? } else { seconds? };
        numbers.push(number);
    }
    Some(numbers)
}

fn said(value: &Value) -> Option<&str> {
    if let Value::BulkString(bytes) = value { std::str::from_utf8(bytes).ok() } else { None }
}

pub(crate) fn read(question: &Question<'_>, value: &Value) -> Option<Reply> {
    let Value::Array(values) = value else { return None };
    let number = |value| said(value)?.parse::<u64>().ok();
    let [done, admitted, seconds, nanos, states @ ..] = values.as_slice() else { return None };
    let now = number(seconds)?.checked_mul(SECOND)?.checked_add(number(nanos)?)?;
    let mut found = ArrayVec::new();
    for (charge, state) in question.charges.iter().zip(states.chunks_exact(2)) {
        let [rule, state] = state else { return None };
        let (rule, state) = (said(rule)?, said(state)?);
        let numbers = numbers(shape_of(rule, charge), state).unwrap_or_default();
        found.push(Found { rule: rule.to_owned(), numbers });
    }
    Some(Reply { done: number(done)? == 1, admitted: number(admitted)?, now, found })
}
