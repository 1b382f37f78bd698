//! Does one fixed piece of work once, named by the only argument. `run` beside this
//! counts its instructions under callgrind and compares them with `baseline`: a count
//! does not depend on how busy a machine is.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use verbatim_gate::WORK;

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    match WORK.iter().find(|(name, _)| wanted.as_deref() == Some(name)) {
        Some((_, work)) => {
            work();
            ExitCode::SUCCESS
        }
        None => ExitCode::from(2),
    }
}
