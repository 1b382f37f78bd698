//! What commands print. Whoever reads it may be gone, or its disk full: a command
//! goes on with what it is at, so printing does not fail, and does not end it.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a line to standard output.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {{
        // What goes on without a reader is done all the same.
        let _ = $crate::print_out(::std::format_args!($($text)*));
    }};
}

/// Prints a line for people to standard error.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::print_note(::std::format_args!($($text)*)) };
}

/// Whether a line was not taken.
static LOST: AtomicBool = AtomicBool::new(false);

/// The same; says whether it was taken.
pub fn print_out(line: Arguments<'_>) -> bool {
    let taken = writeln!(std::io::stdout(), "{line}").is_ok();
    LOST.fetch_or(!taken, Ordering::Relaxed);
    taken
}

/// Whether all that was printed was taken: who does not say so ends as if it had been.
pub fn is_all_taken() -> bool {
    !LOST.load(Ordering::Relaxed)
}

/// What `note!` does.
pub fn print_note(line: Arguments<'_>) {
    // There is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}
