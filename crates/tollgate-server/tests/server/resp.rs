//! RESP, asked by redis-cli, redis-benchmark, redis-py, and by bytes that no client sends.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::Command;

use crate::rig::{Folder, Server, connect, python, raw, read_all};

/// What redis-cli prints.
fn cli(server: &Server, words: &[&str]) -> Vec<String> {
    let (host, port) = server.resp.split_once(':').unwrap();
    let mut command = Command::new("redis-cli");
    let output = command.args(["-h", host, "-p", port]).args(words).output().expect("redis-cli");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim_end().lines().map(str::to_owned).collect()
}

fn start() -> Server {
    Server::start(&["--resp", "127.0.0.1:0", "--limit", "5/1m"])
}

fn numbers(answer: &[String]) -> Vec<i64> {
    answer.iter().map(|line| line.parse().unwrap_or_else(|_| panic!("{answer:?}"))).collect()
}

#[test]
fn cl_throttle_answers_the_five_numbers_of_redis_cell() {
    let server = start();
    let throttle = |key, rest: &[&str]| numbers(&cli(&server, &[&["CL.THROTTLE", key], rest].concat()));
    assert_eq!(throttle("user123", &["15", "30", "60"]), [0, 16, 15, -1, 2]);
    assert_eq!(throttle("user123", &["15", "30", "60", "0"])[..4], [0, 16, 15, -1], "0 looks");
    assert_eq!(throttle("user123", &["15", "30", "60", "15"])[..4], [0, 16, 0, -1]);
    let limited = throttle("user123", &["15", "30", "60"]);
    assert_eq!(limited[..3], [1, 16, 0]);
    assert!((1..=2).contains(&limited[3]) && (30..=32).contains(&limited[4]), "{limited:?}");
    assert_eq!(throttle("user123", &["15", "30", "60", "17"])[..4], [1, 16, 0, -1], "it will never fit");
    assert_eq!(throttle("other", &["15", "30", "60"])[..3], [0, 16, 15], "another key");
    assert_eq!(throttle("one", &["0", "1", "10"])[..4], [0, 1, 0, -1]);
    let limited = throttle("one", &["0", "1", "10"]);
    assert!(
        limited[0] == 1 && (9..=10).contains(&limited[3]),
        "never early, never 0 while limited: {limited:?}"
    );
}

#[test]
fn hostile_parameters_are_errors_and_never_an_unlimited_pass() {
    let server = start();
    let (most, century) = ("9223372036854775807", "3153600000");
    for parameters in [
        ["0", "0", "60"],
        ["0", "-1", "60"],
        ["-1", "30", "60"],
        ["0", "30", "0"],
        ["0", "30", "-60"],
        ["0", "30", century],
        ["0", "30", most],
        [most, "30", "60"],
        ["9223372036854775806", "1", "1"],
        ["0", most, "60"],
        ["0", most, most],
        ["0", "18446744073709551616", "60"],
        ["1000000", "30", "60"],
        ["0", "1000001", "1"],
        ["x", "30", "60"],
        ["1.5", "30", "60"],
        ["", "30", "60"],
        [" 1", "30", "60"],
    ] {
        let answer = cli(&server, &["CL.THROTTLE", "k", parameters[0], parameters[1], parameters[2]]);
        assert!(answer[0].starts_with("ERR "), "{parameters:?}: {answer:?}");
    }
    for quantity in ["-1", "-9223372036854775808", "9223372036854775808", "many"] {
        let answer = cli(&server, &["CL.THROTTLE", "k", "15", "30", "60", quantity]);
        assert!(answer[0].starts_with("ERR quantity"), "{quantity}: {answer:?}");
    }
    assert_eq!(numbers(&cli(&server, &["CL.THROTTLE", "k", "15", "30", "60", most]))[..4], [1, 16, 16, -1]);
    assert_eq!(
        numbers(&cli(&server, &["CL.THROTTLE", "k", "999999", "1000000", "1"]))[..3],
        [0, 1_000_000, 999_999]
    );
    for words in [
        &["CL.THROTTLE"][..],
        &["CL.THROTTLE", "k", "1", "1"],
        &["CL.THROTTLE", "k", "1", "1", "1", "1", "1"],
    ] {
        assert!(cli(&server, words)[0].contains("wrong number of arguments"), "{words:?}");
    }
    assert!(cli(&server, &["CL.THROTTLE", "", "15", "30", "60"])[0].starts_with("NOSUBJECT"));
    assert!(cli(&server, &["THROTTLE", "k", "1", "1", "1"])[0].contains("another order and polarity"));
}

#[test]
fn tollgate_asks_the_policies_in_milliseconds() {
    let server = start();
    let first = cli(&server, &["TOLLGATE", "default", "alice"]);
    assert_eq!(first, ["0", "5", "4", "-1", "12000", "admit", "0", "0"]);
    assert_eq!(cli(&server, &["TOLLGATE", "default", "alice", "4"])[..4], ["0", "5", "0", "-1"]);
    let refused = cli(&server, &["TOLLGATE", "default", "alice"]);
    assert_eq!((refused[0].as_str(), refused[5].as_str()), ("1", "refuse"));
    assert!((11_000..=12_000).contains(&refused[3].parse::<u64>().unwrap()), "{refused:?}");
    assert_eq!(cli(&server, &["TOLLGATE", "default", "alice", "-1"])[..3], ["0", "5", "1"], "given back");
    assert_eq!(cli(&server, &["TOLLGATE", "default", "alice", "6"])[5], "never");
    let all = cli(&server, &["-3", "TOLLGATE.ALL", "default", "bob", "1", "default", "alice", "2"]);
    let text = all.join("\n");
    assert!(text.starts_with("limited 1\nreason refuse") && text.contains("policy default"), "{text}");
    assert_eq!(cli(&server, &["TOLLGATE", "default", "bob", "0"])[2], "5", "all or none");
    assert!(cli(&server, &["TOLLGATE", "nowhere", "bob"])[0].starts_with("NOPOLICY"));
    assert!(cli(&server, &["TOLLGATE", "default", ""])[0].starts_with("NOSUBJECT"));
    assert!(cli(&server, &["TOLLGATE", "default", "bob", "1.5"])[0].starts_with("ERR cost"));
    assert!(server.metric("tollgate_decisions_total{decision=\"give_back\",policy=\"default\"}") >= 1.0);
    assert!(server.decisions().iter().any(|line| line["door"] == "resp" && line["decision"] == "never"));
}

#[test]
fn a_password_comes_first_and_is_asked_for_by_hello_and_auth() {
    let folder = Folder::new();
    let text = "[server]\nresp = \"127.0.0.1:0\"\nresp_password = \"correct horse\"\n[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n";
    let server = Server::with_file(&folder.write("p.toml", text), "");
    let ask = |commands: &str| raw(&server.resp, format!("{commands}QUIT\r\n").as_bytes());
    assert!(ask("PING\r\nTOLLGATE p a\r\n").starts_with("-NOAUTH Authentication required.\r\n-NOAUTH"));
    assert!(ask("AUTH wrong\r\n").starts_with("-WRONGPASS"));
    assert!(ask("*3\r\n$4\r\nAUTH\r\n$4\r\nroot\r\n$13\r\ncorrect horse\r\n").starts_with("-WRONGPASS"));
    assert!(ask("HELLO 3\r\n").starts_with("-NOAUTH"));
    let auth = "*2\r\n$4\r\nAUTH\r\n$13\r\ncorrect horse\r\n";
    assert_eq!(
        ask(&format!("{auth}PING\r\nRESET\r\nPING\r\n")),
        "+OK\r\n+PONG\r\n+RESET\r\n-NOAUTH Authentication required.\r\n+OK\r\n"
    );
    let hello = "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$13\r\ncorrect horse\r\n";
    let said = ask(&format!("{hello}CLIENT GETNAME\r\nTOLLGATE p a\r\n"));
    assert!(
        said.starts_with("%6\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n")
            && said.contains("_\r\n%8\r\n$7\r\nlimited\r\n:0\r\n"),
        "{said}"
    );
    let guessed = ask(&"AUTH wrong\r\n".repeat(9));
    assert_eq!((guessed.matches("-WRONGPASS").count(), guessed.contains("+OK")), (3, false), "{guessed}");
    let log = server.errors.lock().unwrap().clone();
    assert!(log.contains("wrong user or password") && !log.contains("correct horse"), "{log}");
    let open = start();
    assert!(
        raw(&open.resp, b"AUTH x\r\nHELLO 4\r\nHELLO 3 SETNAME\r\nSELECT 1\r\nQUIT\r\n")
            .starts_with("-ERR there is no password to give: none is configured\r\n-NOPROTO")
    );
}

#[test]
fn a_pipeline_is_answered_in_order_whatever_the_pieces_it_comes_in() {
    let server = start();
    let command =
        |n: usize| format!("*3\r\n$8\r\nTOLLGATE\r\n$7\r\ndefault\r\n$5\r\ns{n:04}\r\nECHO {n}\r\n");
    let all: String = (0..1_000).map(command).collect::<String>() + "QUIT\r\n";
    let whole = raw(&server.resp, all.as_bytes());
    let echoed: Vec<&str> = whole.split("\r\n").collect();
    let echoes = echoed.windows(2).filter(|pair| pair[0].starts_with('$') && pair[1].parse::<u32>().is_ok());
    let echoes: Vec<usize> = echoes.map(|pair| pair[1].parse().unwrap()).collect();
    assert_eq!(echoes, (0..1_000).collect::<Vec<_>>());
    assert_eq!(whole.matches("*8\r\n:0\r\n:5\r\n:4\r\n").count(), 1_000);
    let (mut stream, pieces) =
        (connect(&server.resp), "*3\r\n$8\r\nTOLLGATE\r\n$7\r\ndefault\r\n$5\r\ns0000\r\nquit\n");
    for byte in pieces.bytes() {
        stream.write_all(&[byte]).unwrap();
    }
    let said = read_all(&mut stream);
    assert!(said.starts_with("*8\r\n:0\r\n:5\r\n:3\r\n") && said.ends_with("+OK\r\n"), "{said}");
}

#[test]
fn what_is_no_resp_is_told_so_and_the_connection_ends() {
    let server = start();
    for (bytes, said) in [
        (&b"*1\r\n$999999999\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2147483647\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"PING\r\n*1\r\n:1\r\n", "+PONG\r\n-ERR Protocol error: expected '$'\r\n"),
        (b"PING\r\nPOST / HTTP/1.1\r\n\r\nTOLLGATE default a\r\n", "+PONG\r\n"),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n",
            "-ERR unknown command 'GET', or not with these arguments\r\n",
        ),
    ] {
        let answer = raw(&server.resp, bytes);
        assert!(answer.starts_with(said), "{answer}");
        assert!(!answer.contains("+OK") && !answer.contains("*8"), "{answer}");
    }
    let mut half = connect(&server.resp);
    half.write_all(b"PING\r\nTOLLGATE default a\r\n").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut half).starts_with("+PONG\r\n*8\r\n"), "half closed is answered still");
}

#[test]
fn whoever_does_not_read_is_neither_buffered_for_nor_waited_for() {
    let folder = Folder::new();
    let text = "[server]\nresp = \"127.0.0.1:0\"\n[server.limits]\nbody_timeout = \"1s\"\nhead_timeout = \"1s\"\n[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n";
    let server = Server::with_file(&folder.write("p.toml", text), "");
    let before = server.memory();
    let mut deaf = connect(&server.resp);
    deaf.set_write_timeout(Some(crate::rig::PATIENCE)).unwrap();
    let info = "INFO\r\n".repeat(100_000);
    let cut = (0..1_000).find(|_| deaf.write_all(info.as_bytes()).is_err());
    assert!(cut.is_some(), "it was cut off");
    assert!(server.memory() < before + (16 << 20), "{} to {}", before, server.memory());
    let mut slow = connect(&server.resp);
    slow.write_all(b"*3\r\n$8\r\nTOLL").unwrap();
    assert_eq!(slow.read(&mut [0]).unwrap_or(0), 0, "half a command is not waited for");
}

#[test]
fn redis_benchmark_runs_clean_over_random_keys() {
    let server = start();
    let (host, port) = server.resp.split_once(':').unwrap();
    let words = "-P 16 -c 50 -n 100000 -r 1000000 CL.THROTTLE key:__rand_int__ 15 30 60";
    let output = Command::new("redis-benchmark")
        .args(["-h", host, "-p", port])
        .args(words.split(' '))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("100000 requests completed"), "{said}");
    let clean = ["ERR", "rror from server", "WARN"].iter().all(|word| !said.contains(word));
    assert!(clean, "{said}");
    let decided = server.metric("tollgate_decisions_total{decision=\"admit\",policy=\"throttle\"}");
    assert!(decided >= 99_000.0, "{decided}");
}

mod real {
    use super::*;

    #[test]
    fn redis_py_speaks_to_it_in_both_protocols() {
        let server = start();
        let port = server.resp.split_once(':').unwrap().1;
        let said = python("resp.py", &[port]);
        assert!(said.ends_with("fine\n"), "{said}");
    }
}
