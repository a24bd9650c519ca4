//! What the pages tell a reader to type is right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use tollgate_server::cli::Cli;

use crate::rig::Server;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md")];
    paths.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    paths.into_iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of a page that are written in a language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let mark = format!("```{language}\n");
    page.split(mark.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The words of a command line: split at spaces, quotes taken off.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

#[test]
fn every_command_of_the_pages_is_one() {
    let mut seen = 0;
    for (path, page) in pages() {
        for line in blocks(&page, "sh").into_iter().flat_map(str::lines).map(str::trim) {
            let ours =
                line.strip_prefix("cargo run --release -- ").or_else(|| line.strip_prefix("tollgate "));
            if let Some(rest) = ours {
                let command = format!("tollgate {rest}");
                assert!(Cli::try_parse_from(words(&command)).is_ok(), "{path}: {command}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "{seen} commands");
}

#[test]
fn every_policy_file_of_the_pages_and_examples_is_valid() {
    let mut seen = 0;
    let examples = fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let examples = examples.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let files: Vec<(String, String)> =
        examples.map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect();
    let written = pages();
    let in_pages =
        written.iter().flat_map(|(path, page)| blocks(page, "toml").into_iter().map(move |b| (path, b)));
    let in_pages = in_pages.map(|(path, block)| (path.clone(), block.to_owned()));
    for (path, text) in in_pages.chain(files) {
        if let Err(problems) = tollgate_server::settings::read(&path, &text, None) {
            panic!("{problems}");
        }
        seen += 1;
    }
    assert!(seen >= 3, "{seen} files");
}

#[test]
fn every_curl_of_the_pages_is_answered() {
    let server = Server::start(&[]);
    let mut seen = 0;
    for (path, page) in pages() {
        for line in
            blocks(&page, "sh").into_iter().flat_map(str::lines).filter(|line| line.starts_with("curl"))
        {
            let line = line.replace("127.0.0.1:8081", &server.api);
            let out = Command::new("sh").args(["-c", &line]).output().unwrap();
            let out = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.contains("\"decision\":\"admit\""), "{path}: {line}: {out}");
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} calls");
}

#[test]
fn every_metric_of_the_pages_is_there_and_the_other_way_round() {
    let server = Server::start(&["--upstream", "http://127.0.0.1:1"]);
    crate::rig::get(&server.gateway, "/", &[]);
    let metrics = crate::rig::get(&server.admin, "/metrics", &[]).body;
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = page.split('`').skip(1).step_by(2).filter(|code| code.starts_with("tollgate_"));
    let names: Vec<&str> = names.map(|code| code.split(|c| !is_name(c)).next().unwrap()).collect();
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(names.contains(&name), "{name} is not in the docs");
    }
    let source = fs::read_to_string(root().join("crates/tollgate-server/src/metrics.rs")).unwrap();
    for name in names {
        assert!(source.contains(&format!("\"{name}\"")), "{name} is no metric");
    }
}
