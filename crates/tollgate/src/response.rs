//! Cost that is known afterwards: which responses count, and what they cost.
//!
//! The most that a response may cost is charged before the request is passed on, and what it did not cost is given back. So
//! requests that are under way together cannot outrun the count. Charged after instead, each of those under way may.

use http::{HeaderMap, HeaderName, StatusCode};

use crate::policy::Cost;

/// What a response must be like to count, and what it costs then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnResponse {
    /// One of these status codes, each from the first to the last; any when empty.
    pub statuses: Vec<(u16, u16)>,
    /// All of these header fields, with this value, or any when it is `*`.
    pub headers: Vec<(HeaderName, String)>,
    /// What it costs, by a header of the response or its size; else what the request does.
    pub cost: Option<Cost>,
    /// Whether nothing is charged before, and what the response costs after it, whatever that comes to.
    pub after: bool,
}

/// A response, as far as policies look at it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its header fields.
    pub headers: &'a HeaderMap,
    /// The size of its body, when that is known.
    pub size: Option<u64>,
}

impl OnResponse {
    /// Whether a response counts.
    pub fn counts(&self, response: &Response<'_>) -> bool {
        let status = response.status.as_u16();
        (self.statuses.is_empty() || self.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status)))
            && self.headers.iter().all(|(name, value)| {
                let mut lines = response.headers.get_all(name).iter();
                lines.any(|line| value == "*" || line.as_bytes() == value.as_bytes())
            })
    }

    /// The most that it may come to, for a request of this cost.
    pub(crate) fn most(&self, request: u64) -> u64 {
        match self.cost {
            Some(Cost::Header { max, .. } | Cost::Size { max, .. }) => max,
            Some(Cost::Fixed(cost)) => cost,
            None => request,
        }
    }

    /// What a response costs whose request was charged `charged`; `None` while its size is not known. What it says that is no
    /// number costs the most.
    pub(crate) fn cost(&self, response: &Response<'_>, charged: u64) -> Option<u64> {
        if !self.counts(response) {
            return Some(0);
        }
        Some(match &self.cost {
            None => charged,
            Some(Cost::Fixed(cost)) => *cost,
            Some(size @ Cost::Size { .. }) => size.of_size(response.size?),
            Some(Cost::Header { name, max, default }) => {
                let mut lines = response.headers.get_all(name).iter();
                match (lines.next(), lines.next()) {
                    (None, _) => *default,
                    (Some(line), None) => {
                        let number = line.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
                        number.map_or(*max, |cost| cost.min(*max))
                    }
                    _ => *max,
                }
            }
        })
    }
}

impl Cost {
    /// What so many bytes cost; a cost that does not go by size is its own.
    pub(crate) fn of_size(&self, bytes: u64) -> u64 {
        match self {
            Cost::Size { per, max } => bytes.div_ceil((*per).max(1)).clamp(1, (*max).max(1)),
            Cost::Fixed(cost) => *cost,
            Cost::Header { max, .. } => *max,
        }
    }
}
