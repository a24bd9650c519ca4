//! What the function in PostgreSQL is told, and what its answer says.

use arrayvec::ArrayVec;
use tokio_postgres::Row;
use tollgate_core::{Fingerprint, Rule, Shape};

use crate::remote::{Found, Reply};

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn key(key: Fingerprint) -> Vec<u8> {
    key.0.to_be_bytes().to_vec()
}

pub(crate) fn shape(rule: &Rule) -> &'static str {
    match rule.shape() {
        Shape::Cell => "cell",
        Shape::Counter => "counter",
        Shape::Log => "log",
    }
}

/// Numbers as the schema's function writes them.
pub(crate) fn text(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

pub(crate) fn read(row: &Row) -> Option<Reply> {
    let (done, admitted, now): (bool, i64, i64) =
        (row.try_get(0).ok()?, row.try_get(1).ok()?, row.try_get(2).ok()?);
    let (rules, texts): (Vec<String>, Vec<String>) = (row.try_get(3).ok()?, row.try_get(4).ok()?);
    let found = |(rule, text): (String, String)| {
        let numbers: Option<Vec<u64>> = text.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
        Some(Found { rule, numbers: numbers? })
    };
    let found: Option<ArrayVec<Found, { crate::MAX_CHARGES }>> =
        rules.into_iter().zip(texts).map(found).collect();
    Some(Reply {
        done,
        admitted: u64::try_from(admitted).ok()?,
        now: u64::try_from(now).ok()?,
        found: found?,
    })
}
