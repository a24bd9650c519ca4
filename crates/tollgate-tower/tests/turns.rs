//! Waiting one's turn, in virtual time: the pace, the order, and that no place is ever lost.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tollgate::{Check, Clock, Limiter, PolicySet, SECOND, Salt};
use tollgate_tower::shed::{LEASE, Shed, ShedLayer};
use tollgate_tower::{LimitLayer, Turns};
use tower::{Layer, Service, ServiceExt, service_fn};

const START: u64 = 1_800_057_600 * SECOND;

type Body = Full<Bytes>;

/// A limiter whose clock goes with tokio's.
struct Rig {
    limiter: Arc<Limiter>,
    turns: Arc<Turns>,
    clock: Clock,
    start: Instant,
    /// Whose requests left, and when.
    left: Arc<Mutex<Vec<(String, Duration)>>>,
}

impl Rig {
    fn new(policy: &str, most: usize) -> Self {
        let clock = Clock::manual(START);
        let set = PolicySet::from_toml(policy).unwrap_or_else(|problems| panic!("{problems}"));
        let limiter = Arc::new(Limiter::new(set, Salt::random(), clock.clone()));
        Rig { limiter, turns: Turns::new(most), clock, start: Instant::now(), left: Arc::default() }
    }

    fn service(
        &self,
    ) -> impl Service<
        Request<Body>,
        Response = Response<http_body_util::Either<Body, Body>>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + use<> {
        let (left, start) = (Arc::clone(&self.left), self.start);
        let inner = service_fn(move |request: Request<Body>| {
            let name = request.headers()["x-name"].to_str().unwrap().to_owned();
            left.lock().unwrap().push((name, start.elapsed()));
            async { Ok(Response::new(Body::default())) }
        });
        LimitLayer::new(Arc::clone(&self.limiter)).turns(Arc::clone(&self.turns)).layer(inner)
    }

    /// Brings the limiter's clock up to tokio's.
    fn tick(&self) {
        let passed = u64::try_from(self.start.elapsed().as_nanos()).unwrap();
        self.clock.set(START + passed);
    }

    fn left(&self) -> Vec<(String, Duration)> {
        self.left.lock().unwrap().clone()
    }

    async fn remaining(&self, user: &str) -> u64 {
        let look = Check { policy: "q", subject: user, cost: Some(0) };
        self.limiter.decide_checks(&[look]).await.parts().next().unwrap().1.outcome.remaining
    }
}

fn request(user: &str, name: &str) -> Request<Body> {
    Request::get("http://x/").header("x-user", user).header("x-name", name).body(Body::default()).unwrap()
}

fn queue(quota: &str) -> String {
    format!(
        "[[policy]]\nname = \"q\"\nsubject = \"header:x-user\"\nalgorithm = \"leaky-queue\"\nquota = \"{quota}\"\n"
    )
}

#[tokio::test(start_paused = true)]
async fn a_thousand_at_ten_times_the_rate_leave_at_the_metronome_s_pace_and_in_order() {
    let rig = Rig::new(&queue("100/1s burst 1 queue 1000"), 10_000);
    let service = rig.service();
    let mut calls = Vec::new();
    for n in 0..1_000 {
        rig.tick();
        for user in ["a", "b"] {
            let call = service.clone().oneshot(request(user, &format!("{user}{n}")));
            calls.push(tokio::spawn(call));
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(rig.turns.waiting() > 1_500);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    for user in ["a", "b"] {
        let left: Vec<_> = rig.left().into_iter().filter(|(name, _)| name.starts_with(user)).collect();
        let names: Vec<String> = left.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, (0..1_000).map(|n| format!("{user}{n}")).collect::<Vec<_>>());
        for (n, (_, at)) in left.iter().enumerate() {
            let due = Duration::from_millis(10 * n as u64);
            let off = at.abs_diff(due);
            assert!(off <= Duration::from_millis(2), "{n} left at {at:?}, due at {due:?}");
        }
        let took = left[999].1 - left[0].1;
        assert!(took.abs_diff(Duration::from_millis(9_990)) < Duration::from_millis(200), "{took:?}");
    }
    assert_eq!(rig.turns.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn when_one_goes_away_those_behind_it_move_up_and_its_place_can_be_had() {
    let rig = Rig::new(&queue("1/1s burst 1 queue 4"), 100);
    let service = rig.service();
    let start = |name: &'static str| tokio::spawn(service.clone().oneshot(request("a", name)));
    let mut calls: Vec<_> = ["first", "1", "2", "3", "4"].into_iter().map(start).collect();
    tokio::task::yield_now().await;
    let over = start("5").await.unwrap().unwrap();
    assert_eq!((over.status(), rig.turns.waiting()), (StatusCode::TOO_MANY_REQUESTS, 4));
    tokio::time::sleep(Duration::from_millis(500)).await;
    rig.tick();
    calls.remove(2).abort();
    tokio::task::yield_now().await;
    assert_eq!((rig.turns.waiting(), rig.remaining("a").await), (3, 1), "its place is free again");
    calls.push(start("6"));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let left: Vec<(String, u128)> = rig.left().into_iter().map(|(name, at)| (name, at.as_millis())).collect();
    let expected = [("first", 0), ("1", 1_000), ("3", 2_000), ("4", 3_000), ("6", 4_000)];
    assert_eq!(left, expected.map(|(name, at)| (name.to_owned(), at)));
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may_and_who_is_turned_away_has_taken_no_place() {
    let rig = Rig::new(&queue("1/1s burst 1 queue 100"), 3);
    let service = rig.service();
    let calls: Vec<_> =
        (0..20).map(|n| tokio::spawn(service.clone().oneshot(request("a", &n.to_string())))).collect();
    tokio::task::yield_now().await;
    assert_eq!((rig.turns.waiting(), rig.remaining("a").await), (3, 97));
    let mut shed = 0;
    for call in calls {
        let response = call.await.unwrap().unwrap();
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            assert!(!response.headers().contains_key("ratelimit"), "it says nothing of limits");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(String::from_utf8_lossy(&body).contains("\"error\":\"shed\""));
            shed += 1;
        }
    }
    assert_eq!((shed, rig.turns.waiting()), (16, 0));
}

/// A hundred thousand requests, each dropped at any moment or left to end.
#[tokio::test(start_paused = true)]
async fn whoever_dies_whenever_leaves_no_place_and_no_slot_behind() {
    let policy = queue("200/1s burst 5 queue 50")
        + "[[policy]]\nname = \"counts\"\nsubject = \"header:x-user\"\nquota = \"1000000/1h\"\nresponse = { status = \"4xx\" }\n";
    let rig = Rig::new(&policy, 500);
    let shed = Shed::fixed(40, LEASE, rig.clock.clone());
    let slow = service_fn(|_: Request<Body>| async {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
        Ok::<_, Infallible>(Response::new(Body::default()))
    });
    let limit = LimitLayer::new(Arc::clone(&rig.limiter)).turns(Arc::clone(&rig.turns));
    let service = limit.layer(ShedLayer::new(Arc::clone(&shed)).layer(slow));
    let mut random = fastrand::Rng::with_seed(5);
    let mut most = (0, 0);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100_000_u32 {
        if n % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            rig.tick();
        }
        most = (most.0.max(rig.turns.waiting()), most.1.max(shed.under_way()));
        let user = format!("u{}", random.u32(0..40));
        let call = service.clone().oneshot(request(&user, "x"));
        let patience = Duration::from_millis(random.u64(0..60));
        tasks.spawn(async move {
            // Dropped in the middle, or kept unread for a while.
            if let Ok(Ok(response)) = tokio::time::timeout(patience, call).await {
                tokio::time::sleep(Duration::from_millis(u64::from(n % 3))).await;
                drop(response);
            }
        });
        while tasks.try_join_next().is_some() {}
    }
    tasks.join_all().await;
    assert!(most.0 > 100 && most.1 == 40, "at most {most:?} waited and were under way");
    assert_eq!((rig.turns.waiting(), shed.under_way()), (0, 0));
    // All that wait for one key go away at once: what is left of it is what it was before they came.
    let waits = |n: u32| tokio::spawn(service.clone().oneshot(request("z", &n.to_string())));
    let calls: Vec<_> = (0..55).map(waits).collect();
    tokio::task::yield_now().await;
    assert_eq!((rig.turns.waiting(), rig.remaining("z").await), (50, 0));
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    tokio::task::yield_now().await;
    assert_eq!((rig.turns.waiting(), rig.remaining("z").await), (0, 50));
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.tick();
    for user in 0..40 {
        assert_eq!(rig.remaining(&format!("u{user}")).await, 55);
    }
}
