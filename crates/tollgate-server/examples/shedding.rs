//! An origin that slows down under load, behind the gateway with adaptive shedding and without: what clients see, second by second.
//!
//! `cargo build --release -p tollgate-server && cargo run --release -p tollgate-server --example shedding -- docs/shedding.svg`
#![allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
#![allow(clippy::cast_possible_truncation, reason = "seconds of one run are few")]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// What the origin does at full speed, and how long each takes then.
const WORKERS: usize = 8;
const SERVICE: Duration = Duration::from_millis(20);

/// How long clients wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// The length of a run in seconds, and when it is overloaded.
const LENGTH: usize = 40;
const OVERLOAD: std::ops::Range<usize> = 10..25;

/// Requests in a second.
const fn rate(second: usize) -> u64 {
    if second >= OVERLOAD.start && second < OVERLOAD.end { 2_000 } else { 200 }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1);
    let _as_many_as_it_may = rlimit::increase_nofile_limit(u64::MAX);
    let origin = origin().await?;
    let with = measure(origin, "[server.shed]\nlimit = \"adaptive\"\n").await?;
    let without = measure(origin, "").await?;
    for (name, run) in [("with adaptive shedding", &with), ("without", &without)] {
        println!("{name}: second, in time, answered, shed, given up, p99 ms");
        for (second, one) in run.iter().enumerate() {
            let (answered, p99) = (one.took.len(), one.p99().as_millis());
            println!(
                "  {second:2} {:5} {answered:5} {:5} {:5} {p99:5}",
                one.in_time(run),
                one.shed,
                one.given_up
            );
        }
        let overload = merged(run, OVERLOAD.start + 2..OVERLOAD.end);
        let after = merged(run, OVERLOAD.end + 5..LENGTH);
        let (before, overload, after) = (unloaded(run), overload.p99(), after.p99());
        println!("  p99: {before:?} unloaded, {overload:?} overloaded, {after:?} five seconds after");
    }
    if let Some(path) = path {
        std::fs::write(&path, plot(&with, &without))?;
    }
    Ok(())
}

/// What clients saw of the requests of one second.
#[derive(Clone, Debug, Default)]
struct Second {
    took: Vec<Duration>,
    shed: usize,
    given_up: usize,
}

impl Second {
    fn p99(&self) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        took.get(took.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(PATIENCE)
    }

    /// How many were answered within three times what it takes without load.
    fn in_time(&self, run: &[Second]) -> usize {
        let most = 3 * unloaded(run);
        self.took.iter().filter(|took| **took <= most).count()
    }
}

fn merged(run: &[Second], seconds: std::ops::Range<usize>) -> Second {
    let mut all = Second::default();
    for second in &run[seconds] {
        all.took.extend(&second.took);
    }
    all
}

fn unloaded(run: &[Second]) -> Duration {
    merged(run, 2..OVERLOAD.start).p99()
}

/// An origin whose every answer takes the longer the more it has to do, beyond what it does at full speed.
async fn origin() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let inside = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let inside = Arc::clone(&inside);
            let answer = service_fn(move |_| {
                let place = Place::enter(&inside);
                async move {
                    let crowd = place.0.load(Ordering::Relaxed).max(WORKERS) as u32;
                    tokio::time::sleep(SERVICE * crowd / WORKERS as u32).await;
                    drop(place);
                    Ok::<_, std::convert::Infallible>(Response::new(Empty::<Bytes>::new()))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
        }
    });
    Ok(address)
}

/// One that the origin has to do, until it is done or its client has gone.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn enter(inside: &Arc<AtomicUsize>) -> Self {
        inside.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(inside))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The real binary, with this in its file, and where it listens.
fn gateway(origin: SocketAddr, text: &str) -> Result<(Gateway, String), Failure> {
    let program = std::env::current_exe()?.ancestors().nth(2).ok_or("no target folder")?.join("tollgate");
    let file = std::env::temp_dir().join(format!("tollgate-shedding-{}.toml", std::process::id()));
    let policy = "[log]\ndecisions = false\n[[policy]]\nname = \"all\"\nsubject = \"const:all\"\nquota = \"1000000/1s\"\n";
    std::fs::write(&file, format!("{text}{policy}"))?;
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.arg("--config").arg(&file).arg("--upstream").arg(format!("http://{origin}"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stderr.take().ok_or("no messages")?).lines();
    let running = Gateway(child);
    for line in lines.map_while(Result::ok) {
        if let Some(rest) = line.trim().strip_prefix("gateway") {
            let url = rest.split_whitespace().next().unwrap_or_default().to_owned();
            return Ok((running, url));
        }
    }
    Err("the gateway did not start".into())
}

async fn measure(origin: SocketAddr, text: &str) -> Result<Vec<Second>, Failure> {
    let (_running, url) = gateway(origin, text)?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let (tell, mut told) = mpsc::unbounded_channel();
    let start = Instant::now();
    for second in 0..LENGTH {
        for n in 0..rate(second) {
            let due =
                Duration::from_secs(second as u64) + Duration::from_secs(1) / rate(second) as u32 * n as u32;
            tokio::time::sleep_until((start + due).into()).await;
            let (client, tell) = (client.clone(), tell.clone());
            let request = Request::get(format!("{url}/")).body(Empty::new())?;
            tokio::spawn(async move {
                let begun = Instant::now();
                let asked = async {
                    let response = client.request(request).await.ok()?;
                    let status = response.status();
                    response.into_body().collect().await.ok().map(|_| status)
                };
                let status = tokio::time::timeout(PATIENCE, asked).await.ok().flatten();
                let _heard = tell.send((second, status, begun.elapsed()));
            });
        }
    }
    drop(tell);
    let mut run = vec![Second::default(); LENGTH];
    while let Some((second, status, took)) = told.recv().await {
        match status {
            Some(StatusCode::OK) => run[second].took.push(took),
            Some(StatusCode::SERVICE_UNAVAILABLE) => run[second].shed += 1,
            _ => run[second].given_up += 1,
        }
    }
    Ok(run)
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 130.0;
const LEFT: f64 = 56.0;

/// Where the middle of a second stands.
fn x(second: usize) -> f64 {
    LEFT + (second as f64 + 0.5) * WIDTH / LENGTH as f64
}

/// Two plots, one below the other: answers in time, and how long the slowest hundredth took.
fn plot(with: &[Second], without: &[Second]) -> String {
    let line = |points: Vec<(usize, f64)>, class: &str| {
        let points: Vec<String> =
            points.iter().map(|(second, y)| format!("{:.1},{y:.1}", x(*second))).collect();
        format!("<polyline class=\"{class}\" points=\"{}\"/>\n", points.join(" "))
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <style>text{{fill:#333}}.grid{{stroke:#ccc}}.with{{stroke:#0a7d4f;fill:none;stroke-width:2.5}}\
         .without{{stroke:#c2410c;fill:none;stroke-width:2;stroke-dasharray:5 3}}.load{{fill:#8884}}\
         @media(prefers-color-scheme:dark){{text{{fill:#ccc}}.grid{{stroke:#555}}.with{{stroke:#34d399}}.without{{stroke:#fb923c}}}}</style>\n",
        LEFT + WIDTH + 16.0,
        2.0 * HEIGHT + 130.0
    );
    let (top, below) = (40.0, 40.0 + HEIGHT + 50.0);
    for (base, title) in
        [(top, "answered in time (within 3 x unloaded), a second"), (below, "p99 of what was answered, ms")]
    {
        let (from, to) = (x(OVERLOAD.start) - 8.0, x(OVERLOAD.end) - 8.0);
        let _ = writeln!(
            svg,
            "<rect class=\"load\" x=\"{from:.1}\" y=\"{base}\" width=\"{:.1}\" height=\"{HEIGHT}\"/>",
            to - from
        );
        let _ =
            writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>", base - 8.0);
    }
    let rows = |svg: &mut String, base: f64, labels: &[(f64, String)]| {
        for (share, label) in labels {
            let y = base + HEIGHT * (1.0 - share);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
                LEFT + WIDTH
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
    };
    let most = 500.0;
    rows(&mut svg, top, &[0.0, 200.0, 400.0].map(|n| (n / most, format!("{n}"))));
    let log = |ms: f64| (ms.max(10.0).log10() - 1.0) / (3_000_f64.log10() - 1.0);
    rows(&mut svg, below, &[10.0, 100.0, 1_000.0, 3_000.0].map(|ms| (log(ms), format!("{ms}"))));
    for (run, class) in [(without, "without"), (with, "with")] {
        let good = |second: &Second| top + HEIGHT * (1.0 - (second.in_time(run) as f64 / most).min(1.0));
        svg += &line(run.iter().map(good).enumerate().collect(), class);
        let slow = |second: &Second| below + HEIGHT * (1.0 - log(second.p99().as_secs_f64() * 1_000.0));
        svg += &line(run.iter().map(slow).enumerate().collect(), class);
    }
    svg + &legend(below + HEIGHT) + "</svg>\n"
}

/// What stands below the plots.
fn legend(below: f64) -> String {
    let mut svg = String::new();
    for second in (0..=LENGTH).step_by(5) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second} s</text>",
            x(second) - 8.0,
            below + 16.0
        );
    }
    let y = below + 36.0;
    for (at, class, name) in
        [(LEFT, "with", "limit = \"adaptive\""), (LEFT + 170.0, "without", "without shedding")]
    {
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{at}\" y1=\"{y}\" x2=\"{:.1}\" y2=\"{y}\"/>",
            at + 30.0
        );
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at + 36.0,
            y + 4.0,
            name.replace('"', "&quot;")
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\">grey: 2,000 requests a second, else 200</text>",
        LEFT + 350.0,
        y + 4.0
    );
    svg
}
