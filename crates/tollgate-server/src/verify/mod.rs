//! `tollgate verify`: the laws, tried against one's own store, under names of their own and cleaned up after.

mod fleet;
mod target;

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::{Clock, Rule, Store};
use tollgate_harness::{Blocking, laws};

use crate::Failure;
use crate::cli::VerifyArgs;
use crate::store::StoreUrl;
use target::{Apart, Target};

/// What became of a law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    law: String,
    took: Duration,
    /// What was wrong, if something was.
    broken: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when a law is broken, or the store cannot be had.
pub fn run(arguments: &VerifyArgs) -> Result<(), Failure> {
    let url = StoreUrl::parse(&arguments.store).map_err(Failure::Wrong)?;
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::Impossible(format!("cannot start threads: {error}")))?;
    let target = runtime.block_on(Target::open(&url, arguments))?;
    println!(
        "{url}: every law, with virtual time and then with the store's own, under the names {}",
        target.name()
    );
    if arguments.quick {
        laws::be_quick();
    }
    let trouble = || target.trouble();
    let mut verdicts = Vec::new();
    let wanted = |law: &str| {
        let name = law.replace('_', " ");
        arguments.law.is_empty() || arguments.law.iter().any(|text| name.contains(text.as_str()))
    };
    match &target {
        Target::Memory => laws_of(&|rules: &[Rule]| target::memory(rules), &wanted, &mut verdicts, &trouble),
        Target::Sqlite(folder) => {
            laws_of(&|rules: &[Rule]| target::sqlite(folder, rules), &wanted, &mut verdicts, &trouble);
        }
        Target::Server { virtual_time, .. } => {
            let make = |_: &[Rule]| Blocking::new(Apart::new(virtual_time.clone()), runtime.handle());
            laws_of(&make, &wanted, &mut verdicts, &trouble);
        }
    }
    if let Target::Server { instances, .. } = &target {
        for (law, try_it) in fleet::LAWS.into_iter().filter(|(law, _)| wanted(law)) {
            verdicts.push(tried(law, || runtime.block_on(try_it(instances)), &trouble));
        }
    }
    let left = runtime.block_on(target.clear());
    if verdicts.is_empty() {
        return Err(Failure::Wrong(format!("--law: no law has {} in its name", arguments.law.join(" or "))));
    }
    println!("{}", summary(&verdicts, left));
    let broken = verdicts.iter().filter(|verdict| verdict.broken.is_some()).count();
    if broken == 0 {
        Ok(())
    } else {
        Err(Failure::Wrong(format!("{broken} of {} laws are broken", verdicts.len())))
    }
}

/// What the store said last.
type Trouble<'t> = &'t dyn Fn() -> Option<String>;

fn laws_of<S: Store, M: laws::Make<S>>(
    make: &M,
    wanted: &dyn Fn(&str) -> bool,
    verdicts: &mut Vec<Verdict>,
    trouble: Trouble<'_>,
) {
    for (name, law) in laws::all::<S, M>().into_iter().filter(|(name, _)| wanted(name)) {
        let law = || {
            law(make);
            String::new()
        };
        verdicts.push(tried(name, law, trouble));
    }
}

/// Tries a law, and prints how it went. What it says for itself is printed too.
fn tried(name: &str, law: impl FnOnce() -> String, trouble: Trouble<'_>) -> Verdict {
    let said = Arc::new(Mutex::new(String::new()));
    let (heard, usual) = (Arc::clone(&said), panic::take_hook());
    // The first that is wrong is the one to show: threads that wait for it fail after it.
    panic::set_hook(Box::new(move |what| {
        let mut said = heard.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_empty() {
            *said = text_of(what.payload());
        }
    }));
    let clock = Clock::system();
    let start = clock.now();
    let outcome = panic::catch_unwind(AssertUnwindSafe(law));
    let took = Duration::from_nanos(clock.now().saturating_sub(start));
    panic::set_hook(usual);
    let law = name.replace('_', " ");
    let said = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let said = trouble().map_or(said.clone(), |words| format!("{said}\nthe store said: {words}"));
    let broken = outcome.is_err().then_some(said);
    let verdict = if broken.is_some() { "BROKEN" } else { "kept" };
    println!("  {verdict:<7} {:>6.2} s  {law}", took.as_secs_f64());
    for line in
        broken.iter().flat_map(|text| text.lines()).chain(outcome.iter().flat_map(|text| text.lines()))
    {
        println!("                    {line}");
    }
    Verdict { law, took, broken }
}

/// What a panic says.
fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

fn summary(verdicts: &[Verdict], left: Result<(), String>) -> String {
    let kept = verdicts.iter().filter(|verdict| verdict.broken.is_none()).count();
    let took: Duration = verdicts.iter().map(|verdict| verdict.took).sum();
    let cleaned = match left {
        Ok(()) => "cleaned up".to_owned(),
        Err(error) => format!("not cleaned up ({error}); what is left expires by itself"),
    };
    let broken: Vec<&str> =
        verdicts.iter().filter(|v| v.broken.is_some()).map(|verdict| verdict.law.as_str()).collect();
    let list = if broken.is_empty() { String::new() } else { format!("; broken: {}", broken.join(", ")) };
    format!("{kept} of {} laws kept in {:.1} s; {cleaned}{list}", verdicts.len(), took.as_secs_f64())
}
