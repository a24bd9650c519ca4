//! The architecture, held by a test: what points where, who reads the clock, how long things get, what they are called.

use std::fs;
use std::path::{Path, PathBuf};

const MAX_FILE_LINES: usize = 400;
const MAX_FUNCTION_LINES: usize = 80;

/// Which crates a crate may use, from the bottom up.
const LAYERS: [(&str, &[&str]); 6] = [
    ("tollgate-core", &[]),
    ("tollgate-store", &["tollgate-core"]),
    ("tollgate", &["tollgate-core", "tollgate-store"]),
    ("tollgate-harness", &["tollgate-core", "tollgate-store"]),
    ("tollgate-tower", &["tollgate"]),
    ("tollgate-server", &["tollgate", "tollgate-harness", "tollgate-tower"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(&path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// Every file below the crates, the fuzz targets and the examples with this ending.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates"), root().join("fuzz/fuzz_targets"), root().join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty());
    found.sort();
    found
}

/// The names in a section of a manifest.
fn dependencies(manifest: &str, section: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != section).skip(1);
    let entries = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.trim().is_empty());
    entries.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

#[test]
fn crates_point_downwards_and_the_core_needs_nothing() {
    let crates: Vec<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(crates.len(), LAYERS.len(), "a new crate has its place in LAYERS: {crates:?}");
    for (name, below) in LAYERS {
        let manifest = read(format!("crates/{name}/Cargo.toml"));
        let used = dependencies(&manifest, "[dependencies]");
        assert!(name != "tollgate-core" || used.is_empty(), "tollgate-core depends on {used:?}");
        for other in used.iter().filter(|used| used.starts_with("tollgate")) {
            assert!(below.contains(&other.as_str()), "{name} may not use {other}");
        }
        assert!(manifest.contains("[lints"), "{name} has no lints");
    }
}

#[test]
fn one_file_reads_the_clock() {
    for path in files("rs") {
        let text = fs::read_to_string(&path).unwrap();
        let source = path.components().any(|part| part.as_os_str() == "src");
        let reads =
            ["Instant::now", "SystemTime::now"].iter().any(|call| text.contains(&format!("{call}()")));
        assert!(
            !source || !reads || path.ends_with("tollgate/src/clock.rs"),
            "{} reads the clock",
            path.display()
        );
    }
}

#[test]
fn a_door_decides_once() {
    for (door, calls) in [
        ("gateway.rs", 1),
        ("check.rs", 1),
        ("auth.rs", 1),
        ("rls/mod.rs", 1),
        ("resp/command.rs", 4),
        ("reserve.rs", 1),
    ] {
        let text = read(format!("crates/tollgate-server/src/{door}"));
        assert_eq!(text.matches("app.decide(").count(), calls, "{door}: once for each kind of question");
        assert!(!text.contains("limiter.decide"), "{door} goes around App::decide");
    }
}

#[test]
fn files_and_functions_stay_short() {
    for path in files("rs") {
        let text = fs::read_to_string(&path).unwrap();
        let tests = path.components().any(|part| part.as_os_str() == "tests");
        let lines: Vec<&str> = text.lines().collect();
        assert!(tests || lines.len() <= MAX_FILE_LINES, "{} has {} lines", path.display(), lines.len());
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let declares =
                ["fn ", "pub fn ", "pub(crate) fn ", "async fn ", "pub async fn ", "pub(super) fn "];
            if !declares.iter().any(|begin| line.trim_start().starts_with(begin)) {
                continue;
            }
            let closes = |line: &&str| {
                line.len() > indent && line.trim_start() == "}" && line.find('}') == Some(indent)
            };
            let length = lines[start..].iter().position(closes).unwrap_or(0) + 1;
            assert!(length <= MAX_FUNCTION_LINES, "{}:{} is {length} lines long", path.display(), start + 1);
        }
    }
}

#[test]
fn names_say_what_things_are() {
    let vague = ["utils", "util", "helpers", "helper", "manager", "common", "misc"];
    for path in files("rs") {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(!vague.contains(&stem.as_str()), "{}", path.display());
        let text = fs::read_to_string(&path).unwrap();
        for line in text
            .lines()
            .filter(|line| line.contains("fn ") || line.contains("mod ") || line.contains("struct "))
        {
            let words: Vec<String> =
                line.split(|c: char| !c.is_alphanumeric()).map(str::to_ascii_lowercase).collect();
            let named = words.iter().any(|word| vague.contains(&word.as_str()));
            let foreign = path.ends_with("tidy.rs");
            assert!(!named || foreign, "{}: {line}", path.display());
        }
    }
}

#[test]
fn every_dependency_has_its_line_in_design() {
    let design = read("DESIGN.md");
    for (name, _) in LAYERS {
        let manifest = read(format!("crates/{name}/Cargo.toml"));
        for section in ["[dependencies]", "[build-dependencies]", "[dev-dependencies]"] {
            for used in dependencies(&manifest, section).iter().filter(|used| !used.starts_with("tollgate")) {
                assert!(
                    design.contains(&format!("`{used}`")),
                    "{used}, used by {name}, is not explained in DESIGN.md"
                );
            }
        }
    }
}

#[test]
fn paths_in_the_pages_exist() {
    for page in ["README.md", "ARCHITECTURE.md", "DESIGN.md", "CONTRIBUTING.md"] {
        let text = read(page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap();
            assert!(
                path.is_empty() || path.contains("://") || root().join(path).exists(),
                "{page} links to {path}"
            );
        }
        for path in text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("crates/")) {
            assert!(root().join(path.trim_end_matches('/')).exists(), "{page} names {path}");
        }
    }
}

#[test]
fn unsafe_code_is_nowhere() {
    assert!(read("Cargo.toml").contains("unsafe_code = \"forbid\""));
    assert!(read("crates/tollgate-core/Cargo.toml").contains("unsafe_code = \"forbid\""));
}
