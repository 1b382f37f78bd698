//! Tables in documents that programs write anew: what stands between two marks is
//! replaced, everything else stays. Called by benches that write docs.

use std::io;
use std::path::Path;

/// Replaces what is between the marks of this name in a file.
///
/// # Errors
/// When the file cannot be read or written, or has no such marks.
pub fn write_between(path: &Path, name: &str, text: &str) -> io::Result<()> {
    let before = std::fs::read_to_string(path)?;
    let after = replaced(&before, name, text).ok_or_else(|| {
        io::Error::other(format!("{} has no marks for the table of {name}", path.display()))
    })?;
    std::fs::write(path, after)
}

fn replaced(document: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name} begins -->\n"), format!("<!-- {name} ends -->"));
    let (before, rest) = document.split_once(&begin)?;
    let (_, behind) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let document = "a\n<!-- x begins -->\nold\n<!-- x ends -->\nb\n";
        let expected = "a\n<!-- x begins -->\nnew\n<!-- x ends -->\nb\n";
        assert_eq!(replaced(document, "x", "new\n").as_deref(), Some(expected));
        assert_eq!(replaced(document, "y", "new\n"), None);
        assert_eq!(replaced("<!-- x ends -->\n<!-- x begins -->\n", "x", "new\n"), None);
    }

    #[test]
    fn documents_have_the_marks_that_are_written_between() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
        let marked = [
            ("README.md", "compare"),
            ("docs/performance.md", "goals"),
            ("docs/performance.md", "scale-bench"),
        ];
        for (path, name) in marked {
            let document = std::fs::read_to_string(root.join(path)).expect("a document");
            assert!(replaced(&document, name, "").is_some(), "{path} has no marks of {name}");
        }
    }
}
