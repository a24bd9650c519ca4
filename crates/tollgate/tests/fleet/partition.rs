//! A network that is cut between this machine and its store: the store lives in a network namespace of its own.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollgate::{Around, Reason};

use crate::rig::{RUNTIME, alone, check, instance, until};

const POLICIES: &str =
    "[[policy]]\nname = \"p\"\nquota = \"1000000/1h\"\nplacement = \"strict\"\nclass = \"credential\"\n";

/// A Redis behind a link of its own. All of it is gone when this is dropped.
struct Far {
    name: String,
    near: String,
    server: Child,
    address: String,
}

fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

impl Far {
    /// `None` where no namespace may be made.
    fn start() -> Option<Self> {
        let id = std::process::id() % 10_000;
        let (name, near, there) = (format!("tollgate{id}"), format!("tgn{id}"), format!("tgf{id}"));
        if !ip(&format!("netns add {name}")) {
            return None;
        }
        // Addresses that are for documentation: nobody has them.
        let made = ip(&format!("link add {near} type veth peer name {there}"))
            && ip(&format!("link set {there} netns {name}"))
            && ip(&format!("addr add 198.51.100.1/30 dev {near}"))
            && ip(&format!("link set {near} up"))
            && ip(&format!("netns exec {name} ip addr add 198.51.100.2/30 dev {there}"))
            && ip(&format!("netns exec {name} ip link set {there} up"));
        let server = Command::new("ip")
            .args(["netns", "exec", &name, "redis-server", "--bind", "198.51.100.2", "--port", "6390"])
            .args(["--protected-mode", "no", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn();
        let far = Far { name, near, server: server.ok()?, address: "198.51.100.2:6390".to_owned() };
        made.then_some(far)
    }

    /// The far end of the link goes down, or comes up.
    fn link(&self, state: &str) {
        let there = self.near.replace("tgn", "tgf");
        assert!(ip(&format!("netns exec {} ip link set {there} {state}", self.name)));
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ended = self.server.kill();
        let _reaped = self.server.wait();
        ip(&format!("link del {}", self.near));
        ip(&format!("netns del {}", self.name));
    }
}

#[test]
fn a_cut_network_is_answered_for_within_the_deadline_and_healed_within_two_seconds() {
    let _alone = alone();
    let Some(far) = Far::start() else {
        println!("not tried: no right to make network namespaces here");
        return;
    };
    let deadline = Duration::from_millis(50);
    RUNTIME.block_on(async {
        until("the store", async || TcpStream::connect(&far.address).is_ok()).await;
        let around = Around { deadline, ..Around::default() };
        let limiter = instance(POLICIES, &format!("redis://{}", far.address), "far:", &around);
        until("strict", async || check(&limiter, "p", "a").await.fallback.is_none()).await;
        for (length, what) in [(500, "short"), (4_000, "long")] {
            far.link("down");
            let start = std::time::Instant::now();
            let mut times = Vec::new();
            while start.elapsed() < Duration::from_millis(length) {
                let begun = std::time::Instant::now();
                let ruling = check(&limiter, "p", "a").await;
                times.push(begun.elapsed());
                assert_eq!(ruling.reason, Reason::Unavailable);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            times.sort_unstable();
            let p99 = times[times.len() * 99 / 100];
            assert!(p99 <= deadline + Duration::from_millis(10), "p99 {p99:?}");
            far.link("up");
            let took = until("the store", async || check(&limiter, "p", "a").await.fallback.is_none()).await;
            println!("{what} cut: p99 {p99:?} of {} checks, strict again after {took:?}", times.len());
            assert!(took <= Duration::from_secs(2), "{took:?}");
        }
    });
}
