//! Reads the configuration file: a regular file of bounded size. The parent of `--reloadable`
//! reads it with all its privileges, so it opens nothing else: a read from a pipe would block,
//! and opening a device may have an effect.

use super::ConfigError;
use std::io::Read;
use std::path::Path;
use verbatim_files::regular::open_own;
use verbatim_proto::Fault;

/// The largest configuration that is read: 1 MiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the text of a configuration.
pub(super) fn text_of(path: &Path) -> Result<String, ConfigError> {
    let what = format!("cannot read {}", path.display());
    let unreadable = |text| ConfigError::Unreadable { text };
    let file = open_own(path, &what).map_err(|fault| unreadable(fault.text))?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| unreadable(Fault::from_io(&what, &error).text))?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(unreadable(format!("{what}: it is larger than {FILE_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}
