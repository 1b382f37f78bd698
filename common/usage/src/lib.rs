//! What every command says of itself, from the definition of its flags: `--version`
//! with what a bug report needs, and `--generate man|bash|zsh|fish` for whoever
//! packages it. Each binary parses its flags here; nothing else of it is known.

#![forbid(unsafe_code)]

mod say;
mod version;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, CommandFactory, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use std::ffi::OsString;
use std::io::Write;

pub use say::{is_all_taken, print_note, print_out};

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
    let error = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => return matches,
        Err(error) => error,
    };
    let asks = |argument: &OsString| {
        let word = command.has_subcommands() && argument == "help";
        word || argument == "-h" || argument == "--help"
    };
    if error.kind() == ErrorKind::DisplayHelp && !arguments.iter().any(asks) {
        // As in rsync -avh, where it means something else: nothing would be done, and that well.
        let text =
            "h among other letters: leave it out, sizes are for people anyway; --help is help";
        command.error(ErrorKind::UnknownArgument, text).exit();
    }
    error.exit()
}

/// The manual page, or the completions of a shell.
fn generate(command: &mut Command, kind: &str) -> Result<Vec<u8>, String> {
    let name = command.get_name().to_owned();
    let mut made = Vec::new();
    let shell = match kind {
        "man" => {
            page(command, &mut made).map_err(|error| error.to_string())?;
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

/// Writes the manual page. Commands of a command are on it too, each below a heading of its own:
/// there are no other pages to send a reader to.
fn page(command: &Command, made: &mut Vec<u8>) -> std::io::Result<()> {
    let mut command = command.clone();
    command.build();
    let page = Man::new(command.clone()).source("Verbatim").manual("Verbatim");
    page.render_title(made)?;
    page.render_name_section(made)?;
    page.render_synopsis_section(made)?;
    page.render_description_section(made)?;
    page.render_options_section(made)?;
    for inner in command.get_subcommands().filter(|it| it.get_name() != "help") {
        let mut part = Vec::new();
        let about = Man::new(inner.clone());
        about.render_synopsis_section(&mut part)?;
        about.render_description_section(&mut part)?;
        about.render_options_section(&mut part)?;
        writeln!(made, ".SH \"COMMAND {}\"", inner.get_name())?;
        made.extend(String::from_utf8_lossy(&part).replace(".SH ", ".SS ").into_bytes());
    }
    page.render_version_section(made)
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
        let inner = Command::new("dig").about("Digs").arg(clap::Arg::new("far").long("far"));
        let mut outer = Command::new("rdma-y").version("1").subcommand(inner);
        let page = String::from_utf8(generate(&mut outer, "man").expect("is made")).expect("text");
        let (_, part) = page.split_once(".SH \"COMMAND dig\"").expect("it has a heading");
        assert!(part.contains("Digs") && part.contains("far"), "{page}");
        assert!(!page.contains("(1)"), "there is no other page: {page}");
        let refused = generate(&mut command, "pdf").expect_err("unknown");
        assert!(refused.contains("pdf") && refused.contains(KINDS), "{refused}");
    }
}
