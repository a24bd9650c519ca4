//! The lines of the logs, held once and put in order of time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

use crate::replay::line::{self, Logged, MAX_LINE_BYTES};

/// The most bytes of log, unpacked, that one replay takes.
pub(super) const MAX_LOG_BYTES: usize = 4 << 30;

/// All requests of some logs.
#[derive(Debug, Default)]
pub(super) struct Log {
    text: String,
    /// When, and where in the text.
    lines: Vec<(u64, Range<usize>)>,
    /// Lines that tell of no request.
    pub(super) broken: u64,
}

impl Log {
    /// Adds the lines of a file; `-` is standard input, and what begins like gzip is unpacked.
    pub(super) fn read(&mut self, path: &Path, bar: &ProgressBar) -> io::Result<()> {
        let input: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            let file = File::open(path)?;
            bar.inc_length(file.metadata()?.len());
            Box::new(bar.wrap_read(file))
        };
        let mut input = BufReader::with_capacity(1 << 16, input);
        if input.fill_buf()?.starts_with(&[0x1F, 0x8B]) {
            return self.read_lines(&mut BufReader::with_capacity(1 << 16, MultiGzDecoder::new(input)));
        }
        self.read_lines(&mut input)
    }

    fn read_lines(&mut self, input: &mut impl BufRead) -> io::Result<()> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            // One more than allowed, so that a line that is too long reads as one.
            let most = MAX_LINE_BYTES as u64 + 2;
            match input.by_ref().take(most).read_until(b'\n', &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // A packed log that breaks off tells what it tells.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::InvalidInput
                            | io::ErrorKind::InvalidData
                    ) =>
                {
                    self.broken += 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            if bytes.len() as u64 == most && !bytes.ends_with(b"\n") {
                skip_line(input)?;
                self.broken += 1;
                continue;
            }
            let line = String::from_utf8_lossy(&bytes);
            if line.trim().is_empty() {
                continue;
            }
            let Some(logged) = line::parse(&line) else {
                self.broken += 1;
                continue;
            };
            let start = self.text.len();
            if start + line.len() > MAX_LOG_BYTES {
                return Err(io::Error::other(format!(
                    "more than {MAX_LOG_BYTES} bytes of log; replay a part of it"
                )));
            }
            self.lines.push((logged.time, start..start + line.len()));
            self.text.push_str(&line);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Puts the requests in order of time (those of one instant stay in the log's), and gives the first and last instant.
    pub(super) fn sort(&mut self) -> (u64, u64) {
        self.lines.sort_by_key(|(time, _)| *time);
        let time = |line: Option<&(u64, Range<usize>)>| line.map_or(0, |(time, _)| *time);
        (time(self.lines.first()), time(self.lines.last()))
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = Logged<'_>> {
        self.lines.iter().filter_map(|(_, range)| line::parse(&self.text[range.clone()]))
    }
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            input.consume(end + 1);
            return Ok(());
        }
        let length = buffer.len();
        input.consume(length);
    }
}
