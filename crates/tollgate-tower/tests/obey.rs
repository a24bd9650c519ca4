//! A client that does what origins ask for, in virtual time.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tollgate_tower::{Error, ObeyLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

type Body = Full<Bytes>;
type Answer = (u16, &'static [(&'static str, &'static str)]);

/// An origin that gives these answers in turn and 200 after them, to each credential, and a record of who asked when.
#[derive(Clone)]
struct Origin {
    answers: Arc<Mutex<Vec<(String, Answer)>>>,
    asked: Arc<Mutex<Vec<(String, Duration)>>>,
    start: Instant,
}

impl Origin {
    fn new(answers: &[(&str, Answer)]) -> Self {
        let answers = answers.iter().map(|(who, answer)| ((*who).to_owned(), *answer)).collect();
        Origin { answers: Arc::new(Mutex::new(answers)), asked: Arc::default(), start: Instant::now() }
    }

    fn answer(&self, who: &str) -> Response<Body> {
        self.asked.lock().unwrap().push((who.to_owned(), self.start.elapsed()));
        let mut answers = self.answers.lock().unwrap();
        let next = answers.iter().position(|(whose, _)| whose == who).map(|at| answers.remove(at).1);
        let (status, headers) = next.unwrap_or((200, &[]));
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(Body::default()).unwrap()
    }

    fn asked(&self, who: &str) -> Vec<Duration> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(whose, _)| whose == who).map(|(_, at)| *at).collect()
    }
}

fn client(
    origin: &Origin,
    deadline: u64,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Error<Infallible>, Future: Send> + Clone + use<>
{
    let origin = origin.clone();
    let inner = service_fn(move |request: Request<Body>| {
        let answer = origin.answer(request.headers()["authorization"].to_str().unwrap());
        async move { Ok::<_, Infallible>(answer) }
    });
    ObeyLayer::http(Duration::from_secs(deadline)).layer(inner)
}

fn request(method: &str, who: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri("http://origin/x")
        .header("authorization", who)
        .body(Body::default())
        .unwrap()
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

#[tokio::test(start_paused = true)]
async fn a_429_is_sent_again_when_its_time_is_over_and_others_are_not_delayed() {
    let origin =
        Origin::new(&[("a", (429, &[("retry-after", "10")])), ("a", (429, &[("retry-after", "3")]))]);
    let client = client(&origin, 60);
    let mut calls: Vec<_> =
        (0..5).map(|_| tokio::spawn(client.clone().oneshot(request("POST", "a")))).collect();
    calls.extend((0..100).map(|n| tokio::spawn(client.clone().oneshot(request("GET", &format!("c{n}"))))));
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let asked = origin.asked("a");
    assert_eq!(asked.iter().filter(|at| **at < SECONDS(1)).count(), 1, "what one is told the others do");
    let later: Vec<_> = asked.into_iter().filter(|at| *at > SECONDS(1)).collect();
    assert!(
        later.iter().all(|at| *at >= SECONDS(10) && *at < SECONDS(18)),
        "never early, and not much later: {later:?}"
    );
    for n in 0..100 {
        assert_eq!(origin.asked(&format!("c{n}")), [Duration::ZERO]);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_beyond_the_deadline() {
    let origin = Origin::new(&[("a", (429, &[("retry-after", "100")]))]);
    let client = client(&origin, 60);
    let first = client.clone().oneshot(request("GET", "a")).await.unwrap();
    assert_eq!((first.status().as_u16(), first.headers()["retry-after"].to_str().unwrap()), (429, "100"));
    let Err(Error::Refused(refused)) = client.clone().oneshot(request("GET", "a")).await else {
        panic!("held")
    };
    assert!(refused.retry_after.unwrap() >= SECONDS(99), "{refused}");
    assert_eq!(origin.asked("a").len(), 1, "the origin is left alone");
    tokio::time::sleep(SECONDS(50)).await;
    assert_eq!(
        client.clone().oneshot(request("GET", "a")).await.unwrap().status(),
        200,
        "now it is within the deadline"
    );
    assert!(origin.asked("a")[1] >= SECONDS(100));
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_done_is_not_done_twice() {
    for (method, status, times) in
        [("POST", 503, 1), ("GET", 503, 2), ("PUT", 503, 2), ("POST", 429, 2), ("GET", 500, 1)]
    {
        let origin = Origin::new(&[("a", (status, &[("retry-after", "2")]))]);
        let answer = client(&origin, 60).oneshot(request(method, "a")).await.unwrap();
        assert_eq!(origin.asked("a").len(), times, "{method} {status}");
        assert_eq!(answer.status().as_u16(), if times == 2 { 200 } else { status });
    }
}

#[tokio::test(start_paused = true)]
async fn fields_that_say_nothing_is_left_are_waited_for_before_anything_is_refused() {
    let origin = Origin::new(&[("a", (200, &[("ratelimit", "\"p\";r=0;t=20")])), ("b", (429, &[]))]);
    let client = client(&origin, 60);
    assert_eq!(client.clone().oneshot(request("GET", "a")).await.unwrap().status(), 200);
    assert_eq!(client.clone().oneshot(request("GET", "a")).await.unwrap().status(), 200);
    let asked = origin.asked("a");
    assert!(asked.len() == 2 && asked[1] >= SECONDS(20) && asked[1] < SECONDS(23), "{asked:?}");
    assert_eq!(
        client.clone().oneshot(request("GET", "b")).await.unwrap().status(),
        429,
        "that says nothing of when"
    );
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_says_now_and_refuses_all_the_same_is_not_hammered() {
    let answers: Vec<(&str, Answer)> =
        (0..1_000).map(|_| ("a", (429, &[("retry-after", "0")] as &'static [_]))).collect();
    let origin = Origin::new(&answers);
    let answer = client(&origin, 60).oneshot(request("GET", "a")).await.unwrap();
    assert_eq!(answer.status(), 429);
    let asked = origin.asked("a").len();
    assert!((5..12).contains(&asked), "{asked} times in a minute");
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_come_back_one_after_the_other() {
    let origin = Origin::new(&[("a", (429, &[("retry-after", "20")]))]);
    let client = client(&origin, 60);
    let calls: Vec<_> = (0..50).map(|_| tokio::spawn(client.clone().oneshot(request("GET", "a")))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let mut later = origin.asked("a").split_off(1);
    later.sort_unstable();
    assert!(later[0] >= SECONDS(20) && later[48] < SECONDS(23), "{later:?}");
    assert!(later[48] - later[0] > SECONDS(1), "spread over some time");
    later.dedup();
    assert!(later.len() > 40, "not at the same moment");
}
