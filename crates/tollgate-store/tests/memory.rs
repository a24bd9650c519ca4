//! The in-process table keeps every law.

use tollgate_core::Rule;
use tollgate_store::{Memory, Table, WhenFull};

fn with(keys: usize, when_full: WhenFull) -> impl Fn(&[Rule]) -> Memory {
    move |rules| Memory::new(rules.iter().map(|rule| Table::new(keys, rule.words(), when_full)))
}

tollgate_harness::conformance!(roomy, with(2_000, WhenFull::Share));
tollgate_harness::conformance!(roomy_and_evicting, with(2_000, WhenFull::Evict));
tollgate_harness::conformance!(roomy_and_refusing, with(2_000, WhenFull::Refuse));
