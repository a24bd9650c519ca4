//! nginx's configuration language: words, quotes, blocks.

/// The deepest nesting of blocks.
const MAX_DEPTH: usize = 32;

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    pub(super) line: usize,
    /// Its name and arguments, quotes taken off.
    pub(super) words: Vec<String>,
    /// What stands in its braces.
    pub(super) block: Vec<Directive>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(super) fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }
}

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<Vec<Directive>, (usize, String)> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let all = reader.block(0)?;
    match reader.rest.peek() {
        None => Ok(all),
        Some(_) => Err((reader.line, "unexpected `}`".to_owned())),
    }
}

struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// Directives up to the end, or to a closing brace, which is left.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, (usize, String)> {
        if depth > MAX_DEPTH {
            return Err((self.line, format!("blocks deeper than {MAX_DEPTH}")));
        }
        let mut all = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut line = self.line;
        while let Some(&next) = self.rest.peek() {
            match next {
                '}' if words.is_empty() => break,
                '}' => return Err((self.line, format!("expected `;` after `{}`", words.join(" ")))),
                '#' => while !matches!(self.next(), None | Some('\n')) {},
                c if c.is_whitespace() => drop(self.next()),
                ';' => {
                    self.next();
                    if !words.is_empty() {
                        all.push(Directive { line, words: std::mem::take(&mut words), block: Vec::new() });
                    }
                }
                '{' => {
                    self.next();
                    let block = self.block(depth + 1)?;
                    if self.next() != Some('}') {
                        return Err((line, format!("`{}` has no end", words.join(" "))));
                    }
                    all.push(Directive { line, words: std::mem::take(&mut words), block });
                }
                _ => {
                    if words.is_empty() {
                        line = self.line;
                    }
                    words.push(self.word()?);
                }
            }
        }
        if !words.is_empty() {
            return Err((line, format!("expected `;` after `{}`", words.join(" "))));
        }
        Ok(all)
    }

    fn word(&mut self) -> Result<String, (usize, String)> {
        let start = self.line;
        let quote = self.rest.next_if(|c| matches!(c, '"' | '\''));
        let mut word = String::new();
        loop {
            let Some(&next) = self.rest.peek() else {
                return if quote.is_some() {
                    Err((start, "a quote has no end".to_owned()))
                } else {
                    Ok(word)
                };
            };
            match (next, quote) {
                (c, Some(quote)) if c == quote => {
                    self.next();
                    return Ok(word);
                }
                (';' | '}', None) => return Ok(word),
                // `${name}` is a variable; any other brace opens a block.
                ('{', None) if !word.ends_with('$') => return Ok(word),
                ('{', None) => {
                    while let Some(c) = self.next() {
                        word.push(c);
                        if c == '}' {
                            break;
                        }
                    }
                }
                (c, None) if c.is_whitespace() => return Ok(word),
                ('\\', _) => {
                    self.next();
                    match (self.next(), quote) {
                        (Some(c), Some(quote)) if c == quote || c == '\\' => word.push(c),
                        (Some(c), _) => word.extend(['\\', c]),
                        (None, _) => {}
                    }
                }
                (c, _) => {
                    self.next();
                    word.push(c);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_quotes_blocks_and_comments_are_told_apart() {
        let text = "a 'b c' \"d;\\\"\" ${x}y; # no\nlocation ~ \\.php$ { e f; }\n;";
        let all = parse(text).unwrap();
        assert_eq!(all[0].words, ["a", "b c", "d;\"", "${x}y"]);
        assert_eq!((all[1].line, all[1].words[2].as_str(), all[1].block[0].words.len()), (2, "\\.php$", 2));
        for (wrong, line) in [("a {\nb", 2), ("a", 1), ("a;\n}", 2), ("a \"b", 1), ("a { b }", 1)] {
            assert_eq!(parse(wrong).unwrap_err().0, line, "{wrong}");
        }
        assert!(parse(&"a{".repeat(100)).is_err());
    }
}
