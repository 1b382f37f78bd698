//! Rust as text: blanks comments, literals and tests, finds words and functions, and keeps every
//! character in its place. Counts braces, and knows no syntax beyond them.

/// One function of a file.
#[derive(Debug, PartialEq)]
pub struct Function {
    pub name: String,
    pub first_line: usize,
    pub lines: usize,
}

/// The functions with a body, nested ones too, in code whose text is already blanked.
pub fn functions(code: &str) -> Vec<Function> {
    let chars: Vec<char> = code.chars().collect();
    let line_of = |at: usize| chars[..at].iter().filter(|&&c| c == '\n').count() + 1;
    let mut found = Vec::new();
    for at in words(&chars, "fn") {
        let name_at = at + 2 + chars[at + 2..].iter().take_while(|c| c.is_whitespace()).count();
        let name: String = chars[name_at..].iter().take_while(|c| is_word(**c)).collect();
        // `fn(u8)` is a type, `fn $name` a macro's.
        if name.is_empty() {
            continue;
        }
        if let Some(end) = item_end(&chars, name_at).filter(|&end| chars[end] == '}') {
            let first_line = line_of(at);
            found.push(Function { name, first_line, lines: line_of(end) - first_line + 1 });
        }
    }
    found
}

/// Where the item that goes on at `from` ends: its `;`, or the brace that closes its body.
pub fn item_end(chars: &[char], from: usize) -> Option<usize> {
    let (mut depth, mut braces) = (0_usize, 0_usize);
    for (at, &c) in chars.iter().enumerate().skip(from) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ';' if depth == 0 && braces == 0 => return Some(at),
            '{' => braces += 1,
            '}' if braces <= 1 => return Some(at),
            '}' => braces -= 1,
            _ => {}
        }
    }
    None
}

/// Blanks every item under `#[cfg(test)]` in code whose text is already blanked.
pub fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut code = code.to_owned();
    while let Some(start) = code.find(MARK) {
        let rest: Vec<char> = code[start..].chars().collect();
        let end = item_end(&rest, MARK.len()).map_or(rest.len(), |end| end + 1);
        let blank: String = rest[..end].iter().map(|&c| blanked(c)).collect();
        let tail: String = rest[end..].iter().collect();
        code = format!("{}{blank}{tail}", &code[..start]);
    }
    code
}

/// Blanks comments and the literals of strings and characters, and keeps every line where it
/// is.
pub fn without_text(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = text_end(&chars, at);
        if end > at {
            code.extend(chars[at..end].iter().map(|&c| blanked(c)));
            at = end;
        } else if is_word(chars[at]) {
            // A whole word, so that the r of `for"` or of `r#type` opens nothing.
            let end = at + chars[at..].iter().take_while(|c| is_word(**c)).count();
            code.extend(&chars[at..end]);
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// Where the comment or literal that begins at `at` ends; `at` when none does.
fn text_end(chars: &[char], at: usize) -> usize {
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    match (get(at), get(at + 1)) {
        ('/', '/') => at + chars[at..].iter().take_while(|&&c| c != '\n').count(),
        ('/', '*') => block_comment_end(chars, at),
        ('"', _) => quoted_end(chars, at + 1, '"'),
        ('b' | 'c', '"') => quoted_end(chars, at + 2, '"'),
        ('b', '\'') => quoted_end(chars, at + 2, '\''),
        ('r', '"' | '#') => raw_end(chars, at, at + 1),
        ('b' | 'c', 'r') => raw_end(chars, at, at + 2),
        // `'x'` and `'\n'` are characters, `'a` is a lifetime.
        ('\'', '\\') => quoted_end(chars, at + 1, '\''),
        ('\'', _) if get(at + 2) == '\'' => at + 3,
        _ => at,
    }
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (at, depth) = (at + 2, depth + 1),
            ('*', '/') if depth == 1 => return at + 2,
            ('*', '/') => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], mut at: usize, quote: char) -> usize {
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of a raw string that begins at `start` and has its hashes at `at`; `start` when it
/// is none, but a word or a raw name.
fn raw_end(chars: &[char], start: usize, at: usize) -> usize {
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    if chars.get(at + hashes) != Some(&'"') {
        return start;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = at + hashes + 1;
    let found = chars[body..].windows(close.len()).position(|window| window == close);
    found.map_or(chars.len(), |offset| body + offset + close.len())
}

fn blanked(c: char) -> char {
    if c == '\n' { '\n' } else { ' ' }
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands alone.
pub fn words(chars: &[char], word: &str) -> Vec<usize> {
    let word: Vec<char> = word.chars().collect();
    let alone = |at: usize| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(chars[before]));
        let after = chars.get(at + word.len()).is_some_and(|&c| is_word(c));
        !before && !after
    };
    let places = chars.windows(word.len()).enumerate().filter(|(_, window)| *window == word);
    places.map(|(at, _)| at).filter(|&at| alone(at)).collect()
}

#[test]
fn text_is_blanked_and_code_is_not() {
    let cases = [
        (r#"a("x { \" y"); b"#, "a(          ); b"),
        (r##"a(r#"}"{"#) b"##, "a(        ) b"),
        ("a /* { /* } */ { */ b // {\nc", "a                   b     \nc"),
        (r"match c { '{' | '\'' | b'}' => 'a: x }", "match c {     |      |      => 'a: x }"),
        (r#"fn r#type<'a>(x: &'a str) { for"" }"#, "fn r#type<'a>(x: &'a str) { for   }"),
        (r#"'\u{7b}' br"\" x"#, "               x"),
        ("\"two\nlines\" 'é'", "    \n          "),
    ];
    for (source, code) in cases {
        assert_eq!(without_text(source), code, "{source}");
    }
}

#[test]
fn functions_are_measured_from_fn_to_brace() {
    let source = "impl X {\n    fn a(x: [u8; 4]) -> fn(u8)\n    {\n        \"}\";\n        fn b() {}\n    }\n}\ntrait T { fn c(); }\n";
    let function =
        |name: &str, first_line, lines| Function { name: name.into(), first_line, lines };
    assert_eq!(functions(&without_text(source)), [function("a", 2, 5), function("b", 5, 1)]);
}
