//! One table of a file, read key by key.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Document;

/// A table, the place where it stands, and which of its keys were asked for. Readers give `None` for what is absent and for
/// what is wrong; the latter is noted in the document.
#[derive(Debug)]
pub struct Section<'d> {
    document: &'d Document<'d>,
    table: &'d DeTable<'d>,
    span: Range<usize>,
    path: String,
    asked: RefCell<Vec<String>>,
}

impl<'d> Section<'d> {
    pub(super) fn new(
        document: &'d Document<'d>,
        table: &'d DeTable<'d>,
        span: Range<usize>,
        path: String,
    ) -> Self {
        Section { document, table, span, path, asked: RefCell::default() }
    }

    /// The document that it is part of.
    pub fn document(&self) -> &'d Document<'d> {
        self.document
    }

    /// Leaves these keys to somebody else.
    pub fn ignore(&self, keys: &[&str]) {
        self.asked.borrow_mut().extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Whether a key is there.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn value(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.asked.borrow_mut().push(key.to_owned());
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Notes a problem with a key, or with the whole section when it is not there.
    pub fn problem(&self, key: &str, message: impl Display) {
        let span = self.value(key).map_or_else(|| self.span.clone(), Spanned::span);
        self.document.report(span, self.path_of(key), message.to_string());
    }

    fn wrong_type(&self, path: String, value: &Spanned<DeValue<'_>>, expected: &str) {
        let found = value.get_ref().type_str();
        self.document.report(value.span(), path, format!("expected {expected}, found {found}"));
    }

    /// A string.
    pub fn text(&self, key: &str) -> Option<&'d str> {
        let value = self.value(key)?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.wrong_type(self.path_of(key), value, "a string");
        }
        text
    }

    /// A string that `parse` reads.
    pub fn parse<T, E: Display>(&self, key: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        parse(self.text(key)?).map_err(|error| self.problem(key, error)).ok()
    }

    /// A duration such as `50ms`, in nanoseconds.
    pub fn duration(&self, key: &str) -> Option<u64> {
        self.parse(key, crate::parse_duration)
    }

    /// A whole number within a range.
    pub fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.value(key)?;
        let Some(digits) = value.get_ref().as_integer() else {
            self.wrong_type(self.path_of(key), value, "a whole number");
            return None;
        };
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok().filter(|n| range.contains(n));
        if number.is_none() {
            let (low, high) = (range.start(), range.end());
            self.problem(
                key,
                format!("expected a whole number from {low} to {high}, found {}", digits.as_str()),
            );
        }
        number
    }

    /// A number of bytes: a whole number, or a string such as `64KiB`.
    pub fn size(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        match self.value(key)?.get_ref() {
            DeValue::Integer(_) => self.integer(key, range),
            _ => {
                let size = self.parse(key, parse_size)?;
                if !range.contains(&size) {
                    let (low, high) = (range.start(), range.end());
                    self.problem(key, format!("expected {low} to {high} bytes, found {size}"));
                    return None;
                }
                Some(size)
            }
        }
    }

    /// `true` or `false`.
    pub fn boolean(&self, key: &str) -> Option<bool> {
        let value = self.value(key)?;
        let truth = value.get_ref().as_bool();
        if truth.is_none() {
            self.wrong_type(self.path_of(key), value, "true or false");
        }
        truth
    }

    /// A string, or a list of strings, each read by `parse`. Empty when it is absent.
    pub fn list<T, E: Display>(&self, key: &str, parse: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let one = |value: &Spanned<DeValue<'_>>, path: String| -> Option<T> {
            let Some(text) = value.get_ref().as_str() else {
                self.wrong_type(path, value, "a string");
                return None;
            };
            parse(text).map_err(|error| self.document.report(value.span(), path, error.to_string())).ok()
        };
        match value.get_ref().as_array() {
            None => one(value, self.path_of(key)).into_iter().collect(),
            Some(array) => {
                let items = array.iter().enumerate();
                items.filter_map(|(n, item)| one(item, format!("{}[{n}]", self.path_of(key)))).collect()
            }
        }
    }

    /// A table.
    pub fn section(&self, key: &str) -> Option<Section<'d>> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(self.path_of(key), value, "a table");
        }
        Some(Section::new(self.document, table?, value.span(), self.path_of(key)))
    }

    /// Whether a key is a table.
    pub fn is_section(&self, key: &str) -> bool {
        self.value(key).is_some_and(|value| value.get_ref().is_table())
    }

    /// Whether a key is a string.
    pub fn is_text(&self, key: &str) -> bool {
        self.value(key).is_some_and(|value| value.get_ref().is_str())
    }

    /// Whether a key is a list with nothing in it.
    pub fn is_empty_list(&self, key: &str) -> bool {
        self.value(key).and_then(|value| value.get_ref().as_array()).is_some_and(|list| list.is_empty())
    }

    /// A list of tables (`[[key]]`).
    pub fn sections(&self, key: &str) -> Vec<Section<'d>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(
                self.path_of(key),
                value,
                &format!("a list of tables, written [[{}]]", self.path_of(key)),
            );
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.path_of(key));
            match item.get_ref().as_table() {
                Some(table) => sections.push(Section::new(self.document, table, item.span(), path)),
                None => self.wrong_type(path, item, "a table"),
            }
        }
        sections
    }

    /// Every key with its text, for a table whose keys are the user's own.
    pub fn texts(&self) -> Vec<(&'d str, &'d str)> {
        let keys: Vec<&'d str> = self.table.keys().map(|key| key.get_ref().as_ref()).collect();
        keys.into_iter().filter_map(|key| Some((key, self.text(key)?))).collect()
    }

    /// Notes every key that nobody asked for, with the one that was probably meant.
    pub fn finish(&self) {
        let asked = self.asked.borrow().clone();
        for (key, _) in self.table {
            let name: &str = key.get_ref();
            if asked.iter().any(|known| known == name) {
                continue;
            }
            let closest = asked.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
            let hint = match closest {
                Some((distance, known)) if distance <= 1 + name.chars().count() / 4 => {
                    format!("did you mean `{known}`?")
                }
                _ => {
                    let mut known = asked.clone();
                    known.sort_unstable();
                    known.dedup();
                    format!("expected one of {}", known.join(", "))
                }
            };
            self.document.report(key.span(), self.path_of(name), format!("unknown key; {hint}"));
        }
    }
}

/// Reads a number of bytes such as `512`, `64KiB` or `10MB`.
///
/// # Errors
/// A message when it is none.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; expected a number of bytes such as 512, 64KiB or 10MB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)
}
