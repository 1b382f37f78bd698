//! Text that a peer said, made harmless where it comes in: a terminal must not obey
//! it, and nobody must read it in another order than it is written. Owns which
//! characters that takes. Used by every message that has text in it, and by whoever
//! shows a name.

use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// Whether a character does something to a terminal, or to the text around it, instead of being
/// shown: controls of both blocks, marks that turn the direction of writing, ends of lines and
/// paragraphs.
pub fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// The same text with each such character escaped, as `\u{1b}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) || !text.contains(is_harmful) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_harmful(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown.into()
}

/// Reads a text of a message, with a question mark for each such character: no honest peer sends
/// one, and a message must not take more memory than it has bytes.
pub(crate) fn cleaned<'de, D: Deserializer<'de>>(message: D) -> Result<String, D::Error> {
    let text = String::deserialize(message)?;
    Ok(if text.contains(is_harmful) { text.replace(is_harmful, "?") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{JoinSecret, Welcome};
    use crate::owners::OwnerName;
    use crate::rails::SealedAnswer;
    use crate::wire::{PREFIX_BYTES, decode, encode};
    use crate::{Code, Fault};
    use serde::{Serialize, de::DeserializeOwned};

    /// An escape sequence, the same in one byte, a delete, text that is turned round, and lines.
    const NASTY: &str = "\u{1b}]0;x\u{7}\u{9b}2J\u{7f}\u{202e}txt.exe\u{2066}\u{2028}\r\n";

    #[test]
    fn characters_that_act_are_escaped_and_others_stay() {
        for text in ["", "plain ~", "\u{e9}\u{4e2d}\u{1f600}", "a\u{301}", "\u{5d0}\u{5d1}"] {
            assert!(matches!(clean(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
        let cleaned = clean(NASTY);
        assert!(!cleaned.contains(is_harmful), "{cleaned:?}");
        assert!(
            cleaned.starts_with("\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{7f}\\u{202e}txt.exe"),
            "{cleaned}"
        );
    }

    fn heard<M: Serialize + DeserializeOwned>(message: &M) -> M {
        decode(&encode(message).expect("short")[PREFIX_BYTES..]).expect("a message")
    }

    #[test]
    fn what_a_peer_says_is_clean_when_it_is_heard() {
        let text = NASTY.to_owned();
        // Not by `Fault::new`, which a peer need not call.
        let fault = heard(&Fault { code: Code::Io, text: text.clone() }).text;
        let agent = heard(&Welcome { agent: text.clone(), session: 1, links_max: 1 }).agent;
        let secret = JoinSecret([7; 32]);
        let reason = heard(&SealedAnswer { secret, reason: text.clone() }).reason;
        let name = heard(&OwnerName { is_group: false, name: text }).name;
        for said in [fault, agent, reason, name] {
            assert!(!said.contains(is_harmful), "{said:?}");
        }
        let long = heard(&Fault { code: Code::Io, text: "\u{1b}".repeat(100_000) }).text;
        assert!(long.len() <= 1024, "{} bytes", long.len());
    }
}
