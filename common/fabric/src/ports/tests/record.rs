//! Recorded machines. A record is a text: `path = value` lines, below `[folder]`
//! lines, that are unfolded into a folder and read as the kernel's own files would
//! be. `\\n` in a value is a line's end. The doctor's tests use it too.

use std::fs;
use std::path::Path;

/// Writes the files of a record below a folder, over those that are there.
pub fn unfold(record: &str, root: &Path) {
    let mut folder = root.to_owned();
    for line in record.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            folder = root.join(name.trim_end_matches(']'));
            continue;
        }
        let (path, value) = line.split_once(" =").expect("path = value");
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folder");
        fs::write(path, format!("{}\n", value.trim().replace("\\n", "\n"))).expect("writes");
    }
}
