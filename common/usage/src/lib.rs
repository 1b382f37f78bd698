//! What every command says of itself, from the definition of its flags: `--version`
//! with what a bug report needs, and `--generate man|bash|zsh|fish` for whoever
//! packages it. Each binary parses its flags here; nothing else of it is known.

#![forbid(unsafe_code)]

mod version;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, CommandFactory, Parser};
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::Write;

/// What `--generate` makes.
const KINDS: &str = "man, bash, zsh and fish";

/// Parses the flags of a command. Does not return when they are wrong, or ask for help, the
/// version or something to be generated.
pub fn parse<F: Parser>() -> F {
    F::from_arg_matches(&matches::<F>()).unwrap_or_else(|error| error.exit())
}

/// The same for a command that has to know where its flags stand.
pub fn matches<F: CommandFactory>() -> ArgMatches {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = F::command();
    if let [flag, kind] = &arguments[..]
        && flag == "--generate"
    {
        match generate(&mut command, &kind.to_string_lossy()) {
            Ok(made) => {
                // A reader that goes away has what it wants.
                let _ = std::io::stdout().write_all(&made);
                std::process::exit(0)
            }
            Err(text) => command.error(ErrorKind::InvalidValue, text).exit(),
        }
    }
    // It takes a look at the machine, which nobody else should wait for.
    if arguments.iter().any(|argument| argument == "--version") {
        let number = command.get_version().unwrap_or_default().to_owned();
        // Kept for good: clap wants it so, and the command ends with it.
        command = command.long_version(&*version::told(&number).leak());
    }
    command.get_matches()
}

/// The manual page, or the completions of a shell.
fn generate(command: &mut Command, kind: &str) -> Result<Vec<u8>, String> {
    let name = command.get_name().to_owned();
    let mut made = Vec::new();
    let shell = match kind {
        "man" => {
            let page = clap_mangen::Man::new(command.clone()).source("Verbatim").manual("Verbatim");
            page.render(&mut made).map_err(|error| error.to_string())?;
            return Ok(made);
        }
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        other => return Err(format!("{name} cannot generate {other}; there are {KINDS}")),
    };
    clap_complete::generate(shell, command, name, &mut made);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_completions_name_every_flag() {
        let flag = clap::Arg::new("depth").long("depth").help("How deep");
        let mut command = Command::new("rdma-x").version("1").about("Does x").arg(flag);
        for kind in ["man", "bash", "zsh", "fish"] {
            let made = generate(&mut command, kind).expect("is known");
            let text = String::from_utf8(made).expect("text").replace("\\-", "-");
            assert!(text.contains("depth") && text.contains("rdma-x"), "{kind}: {text}");
        }
        let refused = generate(&mut command, "pdf").expect_err("unknown");
        assert!(refused.contains("pdf") && refused.contains(KINDS), "{refused}");
    }
}
