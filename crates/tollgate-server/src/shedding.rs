//! `[server.shed]`: how much the gateway gives its origins at once, and who comes first when that is not enough.

use std::sync::Arc;
use std::time::Duration;

use tollgate::config::{Section, read_match};
use tollgate::{About, Clock, Match, Request};
use tollgate_tower::shed::{LEASE, MAX_CLASSES, Shed};

/// The largest limit.
const MAX_LIMIT: u64 = 1_000_000;

/// What is shed, and who comes first.
#[derive(Clone, Debug)]
pub struct ShedSettings {
    limit: Limit,
    lease: Duration,
    /// The most important first. What is of none comes after all of them.
    classes: Vec<(String, Match)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Fixed(usize),
    Adaptive { least: usize, initial: usize, most: usize },
}

/// The class of requests that are of no other.
const OTHER: &str = "other";

impl ShedSettings {
    /// Reads the section.
    pub fn read(section: &Section<'_>) -> Option<Self> {
        let number = |key, usual: usize| {
            section.integer(key, 1..=MAX_LIMIT).and_then(|n| usize::try_from(n).ok()).unwrap_or(usual)
        };
        let adaptive = section.is_text("limit");
        let limit = if adaptive {
            section.parse("limit", |text| {
                if text == "adaptive" {
                    Ok(())
                } else {
                    Err(format!("`{text}`: expected a number, or adaptive"))
                }
            })?;
            let (least, most) = (number("min", 4), number("max", 1_000));
            let initial = number("initial", 20.clamp(least, most.max(least)));
            if !(least..=most).contains(&initial) {
                section.problem("initial", "expected min, initial and max to be in this order");
            }
            Limit::Adaptive { least, initial, most }
        } else {
            if !section.has("limit") {
                section.problem("limit", "missing; requests at once to each origin, or \"adaptive\"");
            }
            for key in ["min", "initial", "max"].iter().filter(|key| section.has(key)) {
                section.problem(key, "only an adaptive limit has it");
            }
            Limit::Fixed(number("limit", 1))
        };
        let lease = section.duration("lease").map_or(LEASE, Duration::from_nanos);
        if lease < Duration::from_millis(1) {
            section.problem("lease", "expected at least 1ms");
        }
        let classes = section.sections("class");
        if classes.len() >= MAX_CLASSES {
            section.problem("class", format!("at most {} classes", MAX_CLASSES - 1));
        }
        let classes = classes.iter().filter_map(read_class).collect();
        section.finish();
        Some(ShedSettings { limit, lease, classes })
    }

    /// One for each origin.
    pub fn shed(&self, clock: &Clock) -> Arc<Shed> {
        match self.limit {
            Limit::Fixed(limit) => Shed::fixed(limit, self.lease, clock.clone()),
            Limit::Adaptive { least, initial, most } => {
                Shed::adaptive(least, initial, most, self.lease, clock.clone())
            }
        }
    }

    /// The class of a request, 0 being the most important.
    pub fn class(&self, request: &Request<'_>) -> usize {
        if self.classes.is_empty() {
            return 0;
        }
        let paths = request.path_readings();
        let class = self.classes.iter().position(|(_, matches)| matches.matches(request, &paths));
        class.unwrap_or(self.classes.len())
    }

    /// A class's name.
    pub fn name(&self, class: usize) -> &str {
        self.classes.get(class).map_or(OTHER, |(name, _)| name)
    }
}

fn read_class(section: &Section<'_>) -> Option<(String, Match)> {
    let name = section.parse("name", |name| {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let named = (1..=64).contains(&name.len()) && name.chars().all(fine) && name != OTHER;
        if named { Ok(name.to_owned()) } else { Err(format!("`{name}` is no name of a class")) }
    });
    let matches = section.section("match").map(|matches| read_match(&matches));
    for key in ["name", "match"].iter().filter(|key| !section.has(key)) {
        section.problem(key, "missing; a class has a name, and matches requests as a policy does");
    }
    if matches.as_ref().is_some_and(|matches| matches.about != About::Requests) {
        section.problem("match", "only requests are shed");
    }
    section.finish();
    Some((name?, matches?))
}
