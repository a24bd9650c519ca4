//! Reading a TOML file with every error at once: file, line, key path, what is wrong, what would be right.
//!
//! [`Document`] holds a file and gathers its [`Problems`]; [`Section`] reads one table of it. A server with sections of its
//! own reads them from the same document, so that a user sees all that is wrong in one go.

mod about;
mod manners;
mod placement;
mod policy;
mod section;

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

pub use about::read_match;
pub use placement::{Host, MAX_INSTANCES};
pub use section::{Section, parse_size};

use crate::PolicySet;

/// The largest file that is read, in bytes.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// The most problems that are listed.
pub const MAX_PROBLEMS: usize = 100;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// The key, such as `policy[0].quota`; empty for a syntax error.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A file being read.
#[derive(Debug)]
pub struct Document<'t> {
    name: String,
    directory: PathBuf,
    text: &'t str,
    root: Spanned<DeTable<'t>>,
    problems: RefCell<Vec<Problem>>,
}

impl<'t> Document<'t> {
    /// Parses a file's text; `name` is what its problems call it, and files that it names are looked for beside it.
    pub fn parse(name: &str, text: &'t str) -> Self {
        let (text, too_long) = if text.len() > MAX_FILE_BYTES { ("", true) } else { (text, false) };
        let (root, errors) = DeTable::parse_recoverable(text);
        let directory = Path::new(name).parent().map(Path::to_path_buf).unwrap_or_default();
        let document =
            Document { name: name.to_owned(), directory, text, root, problems: RefCell::default() };
        if too_long {
            document.report(0..0, String::new(), format!("the file is larger than {MAX_FILE_BYTES} bytes"));
        }
        for error in errors {
            document.report(error.span().unwrap_or(0..0), String::new(), error.message().to_owned());
        }
        document
    }

    /// The whole file as a section.
    pub fn root(&self) -> Section<'_> {
        Section::new(self, self.root.get_ref(), 0..0, String::new())
    }

    /// A path as the file means it: relative to its own folder.
    pub fn beside(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    /// Notes a problem.
    pub(crate) fn report(&self, span: Range<usize>, path: String, message: String) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() >= MAX_PROBLEMS {
            return;
        }
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        problems.push(Problem {
            file: self.name.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            path,
            message,
        });
    }

    /// The end of the reading.
    ///
    /// # Errors
    /// Everything that was wrong.
    pub fn finish(self) -> Result<(), Problems> {
        let mut problems = self.problems.into_inner();
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems.dedup();
        Err(Problems(problems))
    }
}

impl PolicySet {
    /// Reads the policies of a file's text. Sections that belong to a server (`[server]`, `[store]`, `[log]`) are not
    /// looked at.
    ///
    /// # Errors
    /// [`Problems`]: everything that is wrong, each with its line.
    pub fn from_toml(text: &str) -> Result<Self, Problems> {
        let document = Document::parse("policy", text);
        let root = document.root();
        root.ignore(&["server", "store", "log"]);
        // The store is the caller's matter.
        let set = PolicySet::read(&root, &Host { shared: true, ..Host::default() });
        root.finish();
        document.finish().map(|()| set)
    }
}
