//! `tollgate import`: the limits of another program's configuration as policies, and a list of what could not be carried over.

mod envoy;
mod nginx;
mod nginx_text;
mod nginx_zone;
mod tree;

use std::collections::HashSet;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use crate::Failure;
use crate::cli::{ImportArgs, ImportKind};
use crate::settings;

/// The largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What became of a file.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    policies: Vec<Written>,
    /// What is different or was left out: the line where it is met first, and what of it.
    notes: Vec<(usize, String)>,
    names: HashSet<String>,
}

/// A policy as it is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) name: String,
    /// Keys, and their values in TOML.
    pub(crate) keys: Vec<(&'static str, String)>,
}

impl Imported {
    pub(crate) fn note(&mut self, line: usize, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.iter().any(|(_, known)| *known == text) {
            self.notes.push((line, text));
        }
    }

    pub(crate) fn push(&mut self, name: &str, keys: Vec<(&'static str, String)>) {
        let name = self.name(name);
        self.policies.push(Written { name, keys });
    }

    /// A name that policies may have, and that none has yet.
    fn name(&mut self, wanted: &str) -> String {
        let fine = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let base: String = wanted.chars().map(fine).take(56).collect();
        let base = if base.is_empty() { "policy".to_owned() } else { base };
        let mut name = base.clone();
        for n in 2.. {
            if self.names.insert(name.clone()) {
                break;
            }
            name = format!("{base}-{n}");
        }
        name
    }

    fn text(&self, from: &Path) -> String {
        let mut text = format!("# The limits of {}, as policies.\n", quiet(&from.display().to_string()));
        if !self.notes.is_empty() {
            text += "#\n# What is different here, or was left out:\n";
        }
        for (line, note) in &self.notes {
            let _infallible = writeln!(text, "#   line {line}: {}", quiet(note));
        }
        for policy in &self.policies {
            let _infallible = write!(text, "\n[[policy]]\nname = {}\n", quoted(&policy.name));
            for (key, value) in &policy.keys {
                let _infallible = writeln!(text, "{key} = {value}");
            }
        }
        text
    }
}

/// A text without line ends, for a comment.
fn quiet(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text as TOML has it.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _infallible = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Several as TOML has them.
pub(crate) fn listed(texts: &[String]) -> String {
    match texts {
        [one] => quoted(one),
        several => format!("[{}]", several.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")),
    }
}

/// Reads, translates and writes. What could not be carried over is in the output, and on standard error.
///
/// # Errors
/// [`Failure`] when the file cannot be read or is no such configuration.
pub fn run(arguments: &ImportArgs) -> Result<(), Failure> {
    let path = &arguments.file;
    let file = std::fs::File::open(path).map_err(|error| Failure::file(path, &error))?;
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    let size = read.map_err(|error| Failure::file(path, &error))?;
    if size as u64 > MAX_FILE_BYTES {
        return Err(Failure::Wrong(format!("{}: longer than {MAX_FILE_BYTES} bytes", path.display())));
    }
    let imported = match arguments.kind {
        ImportKind::Envoy => envoy::import(&text),
        ImportKind::Nginx => nginx::import(&text),
    };
    let mut imported =
        imported.map_err(|(line, what)| Failure::Wrong(format!("{}:{line}: {what}", path.display())))?;
    imported.notes.sort();
    for (line, note) in &imported.notes {
        eprintln!("{}:{line}: {}", path.display(), quiet(note));
    }
    let text = imported.text(path);
    match &arguments.output {
        Some(output) => std::fs::write(output, &text).map_err(|error| Failure::file(output, &error))?,
        None => print!("{text}"),
    }
    eprintln!("{} policies, {} notes", imported.policies.len(), imported.notes.len());
    if imported.policies.is_empty() {
        return Ok(());
    }
    // More policies, or longer ones, than a file may have.
    let shown =
        arguments.output.as_ref().map_or_else(|| "what was written".to_owned(), |o| o.display().to_string());
    settings::read(&shown, &text, None).map(drop).map_err(Failure::from)
}
