//! One scenario, through every door and the library: the same verdicts, the same standings. A new door is a new line in
//! [`every_door_decides_the_same`].

mod doors;
mod envoy;
mod rig;

use serde::Deserialize;

use crate::doors::{Auth, Check, Door, Gateway, Library, Look, Requests, Resp, Tower};
use crate::envoy::{Rls, RlsRequests};
use crate::rig::{Running, START};

const SCENARIO: &str = include_str!("scenario.toml");

#[derive(Deserialize)]
struct Scenario {
    step: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize)]
struct Step {
    at: i64,
    ask: Vec<String>,
    subject: String,
    #[serde(default = "one")]
    cost: i64,
    expect: String,
    #[serde(default)]
    left: Vec<u64>,
    #[serde(default)]
    limit: Vec<u64>,
    retry: Option<u64>,
    reset: Option<u64>,
}

const fn one() -> i64 {
    1
}

/// What a door said of a step. What it has no way to say is `None` or empty.
#[derive(Debug, Default)]
struct Said {
    reason: String,
    left: Vec<u64>,
    limit: Vec<u64>,
    /// In milliseconds, rounded up to what the door counts in.
    retry: Option<u64>,
    reset: Option<u64>,
    /// Milliseconds that the door counts times in.
    grain: u64,
}

impl Step {
    /// What of the expectation is not what was said.
    fn differs(&self, said: &Said, door: &dyn Door) -> Option<String> {
        let up = |milliseconds: u64| milliseconds.div_ceil(said.grain) * said.grain;
        let expect = match self.expect.as_str() {
            // Requests cannot name a policy: those that meet none are not limited.
            "unknown_policy" if door.takes_requests() => "admit",
            expect => expect,
        };
        let of_all = |said: &[u64], expected: &[u64]| said.len() < expected.len() || said.iter().eq(expected);
        let checks = [
            ("verdict", said.reason == expect),
            ("left", said.left.is_empty() || self.left.is_empty() || of_all(&said.left, &self.left)),
            ("limit", said.limit.is_empty() || self.limit.is_empty() || of_all(&said.limit, &self.limit)),
            ("retry", self.retry.is_none() || said.retry == self.retry.map(up)),
            ("reset", self.reset.is_none() || said.reset.is_none() || said.reset == self.reset.map(up)),
        ];
        checks.into_iter().find(|(_, right)| !right).map(|(what, _)| what.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_decides_the_same() {
    let scenario: Scenario = toml::from_str(SCENARIO).unwrap();
    let mut told = 0;
    for number in 0.. {
        let running = Running::start(SCENARIO).await;
        let doors: Vec<Box<dyn Door>> = vec![
            Box::new(Library::new()),
            Box::new(Check::new(&running)),
            Box::new(Requests::new(&running)),
            Box::new(Gateway::new(&running)),
            Box::new(Auth::new(&running)),
            Box::new(Resp::new(&running).await),
            Box::new(Rls::new(&running).await),
            Box::new(RlsRequests::new(&running).await),
            Box::new(Tower::new()),
            Box::new(Look::new(&running)),
        ];
        let Some(mut door) = doors.into_iter().nth(number) else { break };
        for (n, step) in scenario.step.iter().enumerate() {
            let now = START.checked_add_signed(step.at * 1_000_000_000).unwrap();
            running.clock.set(now);
            if step.cost <= 0 && !door.takes_any_cost() {
                continue;
            }
            let said = door.ask(step, now).await;
            let wrong = step.differs(&said, &*door);
            assert_eq!(wrong, None, "{} at step {n}: {step:?}: {said:?}", door.name());
            told += said.left.len();
        }
    }
    assert!(told > 150, "{told} standings");
}
