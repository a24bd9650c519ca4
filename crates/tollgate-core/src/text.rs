//! Quotas and durations as people write them: `100/60s`, `5/1m`, `10/s burst 20`, `1000/1h`.

use core::fmt;
use core::str::FromStr;

use crate::{Quota, QuotaError, SECOND};

const UNITS: [(&str, u64); 18] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("sec", SECOND),
    ("second", SECOND),
    ("seconds", SECOND),
    ("m", 60 * SECOND),
    ("min", 60 * SECOND),
    ("minute", 60 * SECOND),
    ("minutes", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("hour", 3_600 * SECOND),
    ("hours", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
    ("day", 86_400 * SECOND),
    ("days", 86_400 * SECOND),
    ("w", 604_800 * SECOND),
];

/// Why a text is not a quota or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// No `/` between the limit and the window.
    NoWindow,
    /// Not a whole number below 2^64.
    Number,
    /// Not a duration.
    Duration,
    /// A word that is neither `burst N` nor `queue N`.
    Word,
    /// The text can be read, but what it says is not a valid quota.
    Quota(QuotaError),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TextError::NoWindow => "a quota is written LIMIT/WINDOW, for example 100/60s or 10/s burst 20",
            TextError::Number => "expected a whole number of units, for example 100 or 1_000",
            TextError::Duration => {
                "expected a duration: a whole number and ns, us, ms, s, m, h, d or w, for example 60s"
            }
            TextError::Word => "after LIMIT/WINDOW only `burst N` and `queue N` may follow, each once",
            TextError::Quota(error) => return error.fmt(f),
        })
    }
}

impl core::error::Error for TextError {}

impl From<QuotaError> for TextError {
    fn from(error: QuotaError) -> Self {
        TextError::Quota(error)
    }
}

impl FromStr for Quota {
    type Err = TextError;

    /// Reads `LIMIT/WINDOW [burst N] [queue N]`. Without `burst` it is the limit.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let (limit, rest) = text.split_once('/').ok_or(TextError::NoWindow)?;
        let limit = number(limit.trim())?;
        let mut words = rest.split_ascii_whitespace();
        let window = duration(words.next().ok_or(TextError::Duration)?)?;
        let (mut burst, mut queue) = (None, None);
        while let Some(word) = words.next() {
            let slot = match word {
                "burst" => &mut burst,
                "queue" => &mut queue,
                _ => return Err(TextError::Word),
            };
            let value = number(words.next().ok_or(TextError::Number)?)?;
            if slot.replace(value).is_some() {
                return Err(TextError::Word);
            }
        }
        Ok(Quota::new(limit, window, burst.unwrap_or(limit), queue.unwrap_or(0))?)
    }
}

/// Reads a duration such as `250ms`, `60s`, `1m` or `day`, and gives nanoseconds. A unit alone means one of it.
///
/// # Errors
/// [`TextError::Duration`] when the text is none, or is longer than 2^64 ns.
pub fn duration(text: &str) -> Result<u64, TextError> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '_')).ok_or(TextError::Duration)?;
    let (count, unit) = text.split_at_checked(digits).ok_or(TextError::Duration)?;
    let count = if count.is_empty() { 1 } else { number(count).map_err(|_| TextError::Duration)? };
    let unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or(TextError::Duration)?.1;
    count.checked_mul(unit).ok_or(TextError::Duration)
}

fn number(text: &str) -> Result<u64, TextError> {
    if text.is_empty() || text.starts_with('_') || text.ends_with('_') {
        return Err(TextError::Number);
    }
    text.bytes().filter(|byte| *byte != b'_').try_fold(0_u64, |sum, byte| {
        let digit = char::from(byte).to_digit(10).ok_or(TextError::Number)?;
        sum.checked_mul(10).and_then(|sum| sum.checked_add(u64::from(digit))).ok_or(TextError::Number)
    })
}

/// Shows nanoseconds in the largest unit that divides them: `60s` reads `1m`.
pub fn show_duration(nanos: u64) -> impl fmt::Display {
    struct Shown(u64);
    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            const SHOWN: [(&str, u64); 7] = [
                ("d", 86_400 * SECOND),
                ("h", 3_600 * SECOND),
                ("m", 60 * SECOND),
                ("s", SECOND),
                ("ms", 1_000_000),
                ("us", 1_000),
                ("ns", 1),
            ];
            for (name, unit) in SHOWN {
                if self.0 != 0 && self.0.is_multiple_of(unit) {
                    return write!(f, "{}{name}", self.0.checked_div(unit).unwrap_or(0));
                }
            }
            f.write_str("0s")
        }
    }
    Shown(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Result<(u64, u64, u64, u64), TextError> {
        text.parse::<Quota>().map(|q| (q.limit(), q.window(), q.burst(), q.queue()))
    }

    #[test]
    fn quotas_parse_the_way_people_write_them() {
        assert_eq!(quota("100/60s"), Ok((100, 60 * SECOND, 100, 0)));
        assert_eq!(quota("5/1m"), Ok((5, 60 * SECOND, 5, 0)));
        assert_eq!(quota("1000/1h"), Ok((1_000, 3_600 * SECOND, 1_000, 0)));
        assert_eq!(quota("10/s burst 20"), Ok((10, SECOND, 20, 0)));
        assert_eq!(quota(" 1_000 / minute queue 7 burst 3 "), Ok((1_000, 60 * SECOND, 3, 7)));
        assert_eq!(quota("9/366d"), Ok((9, 366 * 86_400 * SECOND, 9, 0)));
        assert_eq!(quota("1000000000/s"), Ok((SECOND, SECOND, SECOND, 0)));
    }

    #[test]
    fn what_is_not_a_quota_says_why() {
        assert_eq!(quota("100"), Err(TextError::NoWindow));
        assert_eq!(quota("/s"), Err(TextError::Number));
        assert_eq!(quota("-1/s"), Err(TextError::Number));
        assert_eq!(quota("99999999999999999999/s"), Err(TextError::Number));
        assert_eq!(quota("1/"), Err(TextError::Duration));
        assert_eq!(quota("1/1 fortnight"), Err(TextError::Duration));
        assert_eq!(quota("1/60"), Err(TextError::Duration));
        assert_eq!(quota("1/99999999999d"), Err(TextError::Duration));
        assert_eq!(quota("1/s bust 2"), Err(TextError::Word));
        assert_eq!(quota("1/s burst 2 burst 3"), Err(TextError::Word));
        assert_eq!(quota("1/s burst"), Err(TextError::Number));
        assert_eq!(quota("0/s"), Err(QuotaError::ZeroLimit.into()));
        assert_eq!(quota("1/0s"), Err(QuotaError::ZeroWindow.into()));
        assert_eq!(quota("1/s burst 0"), Err(QuotaError::ZeroBurst.into()));
        assert_eq!(quota("1/367d"), Err(QuotaError::WindowTooLong.into()));
        assert_eq!(quota("1000000001/s"), Err(QuotaError::TooFast.into()));
        assert_eq!(quota("700000000/s"), Err(QuotaError::Coarse.into()));
        assert_eq!(quota("1/366d burst 18446744073709551615"), Err(QuotaError::SpanTooLong.into()));
    }

    #[test]
    fn a_shown_quota_parses_back() {
        for text in ["100/60s", "10/s burst 20", "1/1500ms", "7/3d burst 2 queue 9"] {
            let quota: Result<Quota, _> = text.parse();
            assert!(quota.is_ok(), "{text}");
            assert_eq!(quota.and_then(|quota| std::format!("{quota}").parse()), quota);
        }
    }
}
