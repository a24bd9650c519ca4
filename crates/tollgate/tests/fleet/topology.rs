//! Redis in its three arrangements: a Cluster whose slots move and whose masters fail, and Sentinel.

use std::process::Command;
use std::time::Duration;

use tollgate::{Check, Limiter};
use tollgate_harness::RedisServer;

use crate::rig::{RUNTIME, alone, check, instance, patient, until};

fn cluster(arguments: &[&str], replicas: usize, size: usize) -> Vec<RedisServer> {
    let nodes: Vec<RedisServer> = (0..size)
        .map(|_| {
            let mut all = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
            all.extend(arguments);
            RedisServer::with("redis-server", &all)
        })
        .collect();
    let mut command = Command::new("redis-cli");
    command.args(["--cluster", "create"]);
    command.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
    command.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
    let made = command.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    for node in &nodes {
        RUNTIME.block_on(until("the cluster", async || {
            node.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        }));
    }
    nodes
}

fn url(nodes: &[RedisServer]) -> String {
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

const POLICIES: &str = r#"
    [[policy]]
    name = "p"
    quota = "20/1d"
    placement = "strict"
    [[policy]]
    name = "q"
    quota = "10/1d"
    placement = "strict"
    algorithm = "sliding-log"
"#;

async fn spend(limiter: &Limiter, subject: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        let ruling = check(limiter, "p", subject).await;
        assert!(ruling.fallback.is_none(), "{subject}");
        admitted += usize::from(ruling.is_admit());
    }
    admitted
}

#[test]
fn a_cluster_counts_exactly_while_its_slots_move() {
    let _alone = alone();
    let nodes = cluster(&[], 0, 3);
    RUNTIME.block_on(async {
        let limiters: Vec<_> =
            (0..2).map(|_| instance(POLICIES, &url(&nodes), "slots:", &patient())).collect();
        for n in 0..60 {
            assert_eq!(spend(&limiters[n % 2], &format!("s{n}"), 12).await, 12);
        }
        // Policies of one request are on different nodes: in turn, and given back.
        let both = ["p", "q"].map(|policy| Check { policy, subject: "both", cost: Some(1) });
        let mut admitted = 0;
        for _ in 0..15 {
            admitted += u64::from(limiters[0].decide_checks(&both).await.is_admit());
        }
        assert_eq!(admitted, 10);
        assert_eq!(spend(&limiters[1], "both", 20).await, 10, "what q refused was given back to p");
        // Half of the first node's slots move to the second, while keys in them are charged.
        let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]);
        let (from, to) = (id(&nodes[0]), id(&nodes[1]));
        let entry = format!("127.0.0.1:{}", nodes[0].port);
        let moving = Command::new("redis-cli")
            .args(["--cluster", "reshard", &entry, "--cluster-from", &from, "--cluster-to", &to])
            .args(["--cluster-slots", "2700", "--cluster-yes", "--cluster-pipeline", "1"])
            .stdout(std::process::Stdio::null())
            .spawn();
        let mut moving = moving.unwrap();
        let mut round = 0;
        while moving.try_wait().unwrap().is_none() {
            spend(&limiters[round % 2], &format!("during{round}"), 1).await;
            round += 1;
        }
        assert!(moving.wait().unwrap().success());
        println!("{round} charges while 2,700 slots moved");
        for n in 0..60 {
            assert_eq!(spend(&limiters[(n + 1) % 2], &format!("s{n}"), 20).await, 8, "s{n}");
        }
        for n in 0..round {
            assert_eq!(spend(&limiters[n % 2], &format!("during{n}"), 21).await, 19, "during{n}");
        }
    });
}

/// A slot in the middle of its move: keys that are gone already are asked for with ASK.
#[test]
fn a_slot_that_is_moving_is_asked_for_where_its_key_is() {
    let _alone = alone();
    let nodes = cluster(&[], 0, 3);
    RUNTIME.block_on(async {
        let limiter = instance(POLICIES, &url(&nodes), "ask:", &patient());
        assert_eq!(spend(&limiter, "one", 5).await, 5);
        let holder =
            nodes.iter().find(|node| node.command(&["KEYS", "ask:{*"]).starts_with("ask:{")).unwrap();
        let key = holder.command(&["KEYS", "ask:{*"]);
        let slot = holder.command(&["CLUSTER", "KEYSLOT", &key]);
        let target = nodes.iter().find(|node| node.port != holder.port).unwrap();
        let (from, to) = (holder.command(&["CLUSTER", "MYID"]), target.command(&["CLUSTER", "MYID"]));
        assert_eq!(target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]), "OK");
        assert_eq!(holder.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]), "OK");
        let port = target.port.to_string();
        assert_eq!(holder.command(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]), "OK");
        assert_eq!(spend(&limiter, "one", 5).await, 5, "ASK is followed");
        for node in [target, holder] {
            assert_eq!(node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]), "OK");
        }
        assert_eq!(spend(&limiter, "one", 20).await, 10, "MOVED is followed");
    });
}

/// Reports of several keys at once are on several nodes.
#[test]
fn approximate_counts_reach_every_node_of_a_cluster() {
    let _alone = alone();
    let nodes = cluster(&[], 0, 3);
    let policies = "[[policy]]\nname = \"p\"\nquota = \"100/1d\"\nplacement = \"approximate\"\n";
    RUNTIME.block_on(async {
        let around = tollgate::Around { sync: Duration::from_millis(20), ..patient() };
        let (one, other) = (
            instance(policies, &url(&nodes), "far:", &around),
            instance(policies, &url(&nodes), "far:", &around),
        );
        for n in 0..800 {
            assert!(check(&one, "p", &format!("s{}", n % 20)).await.is_admit());
        }
        for n in 0..20 {
            let subject = format!("s{n}");
            let left = async || {
                let looked =
                    other.decide_checks(&[Check { policy: "p", subject: &subject, cost: Some(0) }]).await;
                looked.parts().next().map(|(_, part)| part.outcome.remaining)
            };
            until("the report", async || left().await == Some(60)).await;
        }
    });
}

#[test]
fn a_cluster_whose_master_dies_is_found_again() {
    let _alone = alone();
    let mut nodes = cluster(&["--cluster-require-full-coverage", "no"], 1, 6);
    let url = url(&nodes);
    RUNTIME.block_on(async {
        // A replica that never had its master's data does not stand in for it.
        let linked =
            |node: &RedisServer| node.command(&["INFO", "replication"]).contains("master_link_status:up");
        until("the replicas", async || nodes.iter().filter(|node| linked(node)).count() == 3).await;
        let masters: Vec<usize> = (0..6).filter(|n| nodes[*n].info("connected_slaves") == 1).collect();
        let around = tollgate::Around::default();
        let limiter = instance(POLICIES, &url, "dies:", &around);
        until("the cluster", async || check(&limiter, "p", "a").await.fallback.is_none()).await;
        nodes[masters[0]].kill();
        let took = until("every slot", async || {
            for n in 0..40 {
                if check(&limiter, "p", &format!("{}", n + fastrand::u64(..1 << 40))).await.fallback.is_some()
                {
                    return false;
                }
            }
            true
        })
        .await;
        println!("strict in every slot {took:?} after a master died (node timeout 1 s)");
        assert!(took < Duration::from_secs(20));
    });
}

#[test]
fn sentinel_leads_to_the_new_master() {
    let _alone = alone();
    let mut master = RedisServer::start("redis-server");
    let port = master.port.to_string();
    let _replica = RedisServer::with("redis-server", &["--replicaof", "127.0.0.1", &port]);
    let folder = std::env::temp_dir().join(format!("tollgate-sentinel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("sentinel.conf");
    let text = format!(
        "sentinel monitor mine 127.0.0.1 {port} 1\nsentinel down-after-milliseconds mine 500\nsentinel failover-timeout mine 2000\n"
    );
    std::fs::write(&file, text).unwrap();
    let sentinel = RedisServer::sentinel(&file);
    let url = format!("redis+sentinel://127.0.0.1:{}/mine", sentinel.port);
    RUNTIME.block_on(async {
        until("the replica", async || {
            sentinel.command(&["SENTINEL", "replicas", "mine"]).contains("127.0.0.1")
        })
        .await;
        let limiter = instance(POLICIES, &url, "sentinel:", &tollgate::Around::default());
        until("the master", async || check(&limiter, "p", "a").await.fallback.is_none()).await;
        master.kill();
        until("the outage", async || check(&limiter, "p", "a").await.fallback.is_some()).await;
        let took = until("the new master", async || check(&limiter, "p", "b").await.fallback.is_none()).await;
        println!("strict {took:?} after the master died (down after 0.5 s)");
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
