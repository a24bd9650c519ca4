//! RESP on the wire: commands as they come in, replies as they go out.
//!
//! A command is an array of bulk strings, or a line of words. Every length is looked at before anything is kept for it.

use std::ops::Range;

use bytes::{Buf, BytesMut};

/// The most arguments of a command, its name included.
pub const MAX_ARGUMENTS: usize = 32;

/// The longest argument, in bytes.
pub const MAX_ARGUMENT_BYTES: usize = 16 << 10;

/// The longest command, in bytes.
pub const MAX_COMMAND_BYTES: usize = 64 << 10;

/// The longest number, with its sign: that of an argument count or length.
const MAX_DIGITS: usize = 20;

/// What is no command; the connection ends with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// One command: its words, in one piece of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    bytes: bytes::Bytes,
    words: arrayvec::ArrayVec<Range<usize>, MAX_ARGUMENTS>,
}

impl Words {
    /// The n-th word.
    pub fn get(&self, n: usize) -> Option<&[u8]> {
        self.bytes.get(self.words.get(n)?.clone())
    }

    /// All words.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.words.iter().filter_map(|word| self.bytes.get(word.clone()))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// Takes the next whole command off the buffer; `None` while there is none.
///
/// # Errors
/// [`Malformed`] for what no more bytes could make a command of.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Words>, Malformed> {
    loop {
        let read = if buffer.first() == Some(&b'*') { array(buffer) } else { line(buffer) };
        match read? {
            None if buffer.len() > MAX_COMMAND_BYTES => return Err(Malformed("too big a command")),
            None => return Ok(None),
            // An empty line or array asks nothing.
            Some((end, words)) if words.is_empty() => buffer.advance(end),
            Some((end, _)) if end > MAX_COMMAND_BYTES => return Err(Malformed("too big a command")),
            Some((end, words)) => return Ok(Some(Words { bytes: buffer.split_to(end).freeze(), words })),
        }
    }
}

/// Whether the buffer begins with a whole command, or with what no more bytes could make one of.
pub fn is_decided(buffer: &[u8]) -> bool {
    let read = if buffer.first() == Some(&b'*') { array(buffer) } else { line(buffer) };
    buffer.len() > MAX_COMMAND_BYTES || !matches!(read, Ok(None))
}

type Read = Option<(usize, arrayvec::ArrayVec<Range<usize>, MAX_ARGUMENTS>)>;

fn array(buffer: &[u8]) -> Result<Read, Malformed> {
    let Some((count, mut at)) = number(buffer, 0, "invalid multibulk length")? else { return Ok(None) };
    let count = usize::try_from(count).unwrap_or(0);
    if count > MAX_ARGUMENTS {
        return Err(Malformed("invalid multibulk length"));
    }
    let mut words = arrayvec::ArrayVec::new();
    for _ in 0..count {
        match buffer.get(at) {
            Some(b'$') => {}
            Some(_) => return Err(Malformed("expected '$'")),
            None => return Ok(None),
        }
        let Some((length, start)) = number(buffer, at, "invalid bulk length")? else { return Ok(None) };
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_ARGUMENT_BYTES);
        let end = start + length.ok_or(Malformed("invalid bulk length"))?;
        match buffer.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Malformed("expected the end of a bulk string")),
            None => return Ok(None),
        }
        words.push(start..end);
        at = end + 2;
    }
    Ok(Some((at, words)))
}

/// The number after the sign at `at`, and where what follows it begins.
fn number(buffer: &[u8], at: usize, wrong: &'static str) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = buffer.get(at + 1..).unwrap_or_default();
    let Some(end) = rest.iter().take(MAX_DIGITS + 2).position(|byte| *byte == b'\r') else {
        return if rest.len() > MAX_DIGITS { Err(Malformed(wrong)) } else { Ok(None) };
    };
    let digits = std::str::from_utf8(&rest[..end]).ok().and_then(|digits| digits.parse().ok());
    let digits: i64 = digits.ok_or(Malformed(wrong))?;
    match rest.get(end + 1) {
        Some(b'\n') => Ok(Some((digits, at + end + 3))),
        Some(_) => Err(Malformed(wrong)),
        None => Ok(None),
    }
}

/// A line of words, as somebody types it: split at spaces, without quotes.
fn line(buffer: &[u8]) -> Result<Read, Malformed> {
    let Some(end) = buffer.iter().take(MAX_ARGUMENT_BYTES).position(|byte| *byte == b'\n') else {
        let long = buffer.len() >= MAX_ARGUMENT_BYTES;
        return if long { Err(Malformed("too big inline request")) } else { Ok(None) };
    };
    let mut words = arrayvec::ArrayVec::new();
    let mut at = 0;
    for word in buffer[..end].split(|byte| byte.is_ascii_whitespace()) {
        if !word.is_empty() && words.try_push(at..at + word.len()).is_err() {
            return Err(Malformed("too many words"));
        }
        at += word.len() + 1;
    }
    Ok(Some((end + 1, words)))
}

/// Replies, as they go out.
#[derive(Debug)]
pub struct Replies {
    /// The bytes.
    pub out: Vec<u8>,
    /// Whether the client speaks RESP3.
    pub three: bool,
}

impl Replies {
    fn head(&mut self, sign: u8, number: i64) {
        self.out.push(sign);
        self.out.extend_from_slice(number.to_string().as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A short text of ours, without line ends.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// An error: its code, and what was wrong, of which only plain characters are kept.
    pub fn error(&mut self, code: &str, text: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.out.push(b' ');
        let plain = |byte: u8| if byte == b' ' || byte.is_ascii_graphic() { byte } else { b'?' };
        self.out.extend(text.bytes().map(plain));
        self.out.extend_from_slice(b"\r\n");
    }

    /// A number.
    pub fn number(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// Bytes as they are.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', i64::try_from(bytes.len()).unwrap_or(0));
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Nothing.
    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.three { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// The head of an array; its items follow.
    pub fn array(&mut self, length: usize) {
        self.head(b'*', i64::try_from(length).unwrap_or(0));
    }

    /// The head of a map; keys and values follow. An array of both in RESP2.
    pub fn map(&mut self, pairs: usize) {
        let pairs = i64::try_from(pairs).unwrap_or(0);
        if self.three { self.head(b'%', pairs) } else { self.head(b'*', pairs.saturating_mul(2)) }
    }

    /// The head of so many values that have names: a map in RESP3, an array of the values alone in RESP2.
    pub fn fields(&mut self, count: usize) {
        if self.three { self.map(count) } else { self.array(count) }
    }

    /// The name of the next of such values, in RESP3 only.
    pub fn named(&mut self, name: &str) {
        if self.three {
            self.bulk(name.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<Vec<String>>, Malformed> {
        let mut buffer = BytesMut::from(bytes);
        let mut commands = Vec::new();
        while let Some(words) = take(&mut buffer)? {
            commands.push(words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect());
        }
        Ok(commands)
    }

    #[test]
    fn arrays_and_lines_are_commands_and_empty_ones_are_not() {
        let bytes =
            b"*2\r\n$4\r\nPING\r\n$2\r\na\n\r\n\r\n*0\r\n*-1\r\n  set  a b \r\nPING\n*1\r\n$0\r\n\r\n";
        assert_eq!(all(bytes).unwrap(), [vec!["PING", "a\n"], vec!["set", "a", "b"], vec!["PING"], vec![""]]);
    }

    #[test]
    fn every_beginning_of_a_command_is_waited_for() {
        let bytes = b"*3\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n";
        for length in 0..bytes.len() {
            assert_eq!(all(&bytes[..length]), Ok(vec![]), "{length}");
        }
        assert_eq!(all(bytes).unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_become_a_command_is_refused_before_it_is_all_there() {
        for bytes in [
            &b"*33\r\n"[..],
            b"*9223372036854775807\r\n",
            b"*99999999999999999999999",
            b"*x\r\n",
            b"*1\r\n+PING\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$16385\r\n",
            b"*1\r\n$9223372036854775807\r\n",
            b"*1\r\n$1\r\nab\r\n",
            b"*1\rx",
            &[b'a'; MAX_ARGUMENT_BYTES],
            &b"a ".repeat(MAX_ARGUMENTS + 1).iter().copied().chain(*b"\n").collect::<Vec<_>>(),
        ] {
            assert!(all(bytes).is_err(), "{}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
        }
        let argument = format!("${MAX_ARGUMENT_BYTES}\r\n{}\r\n", "a".repeat(MAX_ARGUMENT_BYTES));
        assert!(all(format!("*5\r\n{}", argument.repeat(5)).as_bytes()).is_err(), "too big in all");
        assert_eq!(all(format!("*3\r\n{}", argument.repeat(3)).as_bytes()).unwrap().len(), 1);
    }
}
