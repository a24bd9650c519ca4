//! What a policy is about (`match`), and what follows from it for the rest of the policy.

use http::HeaderName;
use tollgate_core::Algorithm;

use crate::config::Section;
use crate::descriptor::{Entry, MAX_ENTRIES, Pattern};
use crate::{About, Cost, Direction, Match, Placement, Policy, Subject};

/// The longest pattern of a host or path, in bytes.
const MAX_PATTERN_BYTES: usize = 1_024;

/// Reads a `match` section: which requests, descriptors or command it is about.
pub fn read_match(section: &Section<'_>) -> Match {
    let pattern = |text: &str| {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            return Err(format!("a pattern has 1 to {MAX_PATTERN_BYTES} bytes"));
        }
        Ok(text.to_owned())
    };
    let path = |text: &str| {
        if !text.starts_with(['/', '*']) {
            return Err(format!("`{text}` matches no path; begin it with / or *"));
        }
        pattern(text)?;
        // Patterns meet paths in their normal form.
        let normal = crate::request::normal(text, |byte| byte != b'/' && byte != b'%', false);
        Ok(if text.starts_with('*') { normal[1..].to_owned() } else { normal })
    };
    let method = |text: &str| {
        let token = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if token { Ok(text.to_ascii_uppercase()) } else { Err(format!("`{text}` is no method")) }
    };
    let headers = section.section("header").map(|headers| {
        let texts = headers.texts();
        let named = texts.into_iter().filter_map(|(name, value)| match name.parse::<HeaderName>() {
            Ok(header) => Some((header, value.to_owned())),
            Err(_) => {
                headers.problem(name, "not the name of a header field");
                None
            }
        });
        named.collect()
    });
    for key in ["method", "host", "path"] {
        if section.is_empty_list(key) {
            section.problem(key, "an empty list matches nothing; leave it out to match everything");
        }
    }
    let matches = Match {
        methods: section.list("method", method),
        hosts: section.list("host", pattern),
        paths: section.list("path", path),
        headers: headers.unwrap_or_default(),
        about: read_about(section),
    };
    if matches.about != About::Requests
        && matches != (Match { about: matches.about.clone(), ..Match::default() })
    {
        section.problem("method", "descriptors, commands and names have no method, host, path or header");
    }
    section.finish();
    matches
}

fn read_about(section: &Section<'_>) -> About {
    let text = |text: &str| {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            return Err(format!("expected 1 to {MAX_PATTERN_BYTES} bytes"));
        }
        Ok(text.to_owned())
    };
    let domain = section.parse("domain", |name| match name {
        "tollgate" | "tollgate.request" => {
            Err(format!("`{name}` has a meaning of its own; expected another domain"))
        }
        _ => text(name),
    });
    let entries = section.list("descriptor", |entry| text(entry)?.parse::<Entry>());
    let command = section.parse("command", |name| {
        let known = name.eq_ignore_ascii_case("CL.THROTTLE");
        if known {
            Ok(())
        } else {
            Err(format!("`{name}` is no command with a policy; expected CL.THROTTLE"))
        }
    });
    let by_name = section.boolean("by_name").unwrap_or(false);
    if section.has("domain") != section.has("descriptor") {
        section.problem("descriptor", "domain and descriptor go together");
    }
    if section.is_empty_list("descriptor") || entries.len() > MAX_ENTRIES {
        section.problem("descriptor", format!("expected 1 to {MAX_ENTRIES} entries"));
    }
    if section.has("command") && section.has("descriptor") {
        section.problem("command", "a policy is about a command or about descriptors");
    }
    if by_name && (section.has("command") || section.has("descriptor")) {
        section.problem("by_name", "a policy that is asked by name is about nothing else");
    }
    match (command, domain) {
        (Some(()), _) => About::Throttle,
        (None, Some(domain)) => About::Descriptors(Pattern { domain, entries }),
        (None, None) if by_name => About::Name,
        (None, None) => About::Requests,
    }
}

/// What the rest of a policy may say, by what it is about.
pub(super) fn check_about(section: &Section<'_>, policy: &Policy) {
    let of_descriptors = |subject: &Subject| matches!(subject, Subject::Descriptor | Subject::Entry(_));
    match &policy.matches.about {
        About::Requests => {
            if policy.subjects.iter().any(of_descriptors) {
                section.problem("subject", "only policies that match a descriptor have one as subject");
            }
        }
        About::Descriptors(pattern) => {
            let known = |subject: &Subject| match subject {
                Subject::Descriptor | Subject::Const(_) => true,
                Subject::Entry(key) => pattern.entries.iter().any(|entry| entry.key == *key),
                _ => false,
            };
            if !policy.subjects.iter().all(known) {
                let expected = "a descriptor has the subjects descriptor, descriptor:KEY (one of its keys) and const:VALUE";
                section.problem("subject", expected);
            }
        }
        About::Throttle if section.has("subject") => {
            section.problem("subject", "the subject of CL.THROTTLE is its key");
        }
        About::Name if section.has("subject") => {
            section.problem("subject", "whoever asks by name says the subject too");
        }
        About::Throttle | About::Name => {}
    }
    if policy.matches.about != About::Requests && !matches!(policy.cost, Cost::Fixed(_)) {
        section.problem("cost", "only requests have a header or a size that states their cost");
    }
    if policy.client_quota {
        check_client_quota(section, policy);
    }
}

/// Under quotas that the asker chooses, keys are counted as they stand: in one place, whole, by the one algorithm.
fn check_client_quota(section: &Section<'_>, policy: &Policy) {
    if policy.matches.about == About::Requests {
        section.problem(
            "client_quota",
            "nobody who sends a request can choose; match a descriptor or a command",
        );
    }
    if policy.rule.algorithm() != Algorithm::Gcra {
        section.problem("algorithm", "quotas that the asker chooses are counted by gcra");
    }
    if !policy.tiers.is_empty() {
        section.problem("tier", "a policy whose askers choose their quota has no tiers");
    }
    // A file would keep every quota that somebody ever chose.
    if !matches!(policy.placement, Placement::Local | Placement::Strict) {
        section.problem("placement", "quotas that the asker chooses are counted local or strict");
    }
    if policy.on_unavailable == Direction::Local {
        section.problem("on_unavailable", "expected refuse or admit for quotas that the asker chooses");
    }
}
