//! Attacks on a server of any build, over loopback, with their figures: `attack NAME`, as
//! the scripts of `tests/attack` call it. Owns the flags, the server that is attacked (in
//! `victim`) and the table that is printed; each attack is a module. Starts nothing but
//! that server and copies of an honest client, and ends both.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod fuzz;
mod greetings;
mod patterns;
mod strangers;
mod table;
mod unread;
mod victim;

use std::path::PathBuf;
use std::process::ExitCode;
use table::Table;
use verbatim_tests::process;

const USAGE: &str = "usage: attack NAME [--programs FOLDER] [--rounds N] [--seconds N] \
     [--per-second N] [--seed N] [--json]
  strangers   1,024 silent connections of four addresses, and those that say one byte late
  greetings   1,100 connections that send a greeting and never its end
  unread      40 clients that read no answer, and 6 uploads of large chunks that never end
  patterns    patterns that take long to match, beside the copies of another client
  fuzz        damaged frames of authenticated sessions, beside an honest client";

/// What is attacked, and for how long.
pub struct Flags {
    /// How often an honest client copies, quiet and attacked each.
    rounds: usize,
    /// How long one attack lasts, where its rounds do not say.
    seconds: u64,
    /// Connections that are opened in a second in the place of those that were closed.
    per_second: u32,
    /// What random bytes follow from.
    seed: u64,
    json: bool,
}

/// An attack: what it is called, and what it measures.
type Attack = fn(&Flags) -> Table;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parse(&words) {
        Ok((attack, flags)) => {
            let table = attack(&flags);
            print!("{}", if flags.json { table.json() } else { table.text() });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Reads the flags, and says where the programs to attack are.
fn parse(words: &[String]) -> Result<(Attack, Flags), String> {
    let (mut attack, mut programs) = (None, None);
    let mut flags = Flags { rounds: 10, seconds: 10, per_second: 1000, seed: 1, json: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} takes a value"));
        let number =
            |text: &String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--programs" => programs = Some(PathBuf::from(value()?)),
            "--rounds" => flags.rounds = number(value()?)?.max(1) as usize,
            "--seconds" => flags.seconds = number(value()?)?.max(1),
            "--per-second" => flags.per_second = number(value()?)?.clamp(1, 100_000) as u32,
            "--seed" => flags.seed = number(value()?)?,
            "--json" => flags.json = true,
            name if attack.is_none() => attack = Some(named(name)?),
            other => return Err(format!("{other} is not understood")),
        }
    }
    let beside = || std::env::current_exe().ok()?.parent().map(PathBuf::from);
    let programs = programs.or_else(beside).ok_or("the folder of the programs is not known")?;
    let programs = programs.canonicalize().map_err(|error| format!("{programs:?}: {error}"))?;
    process::take_programs_from(&programs);
    Ok((attack.ok_or("no attack is named")?, flags))
}

fn named(name: &str) -> Result<Attack, String> {
    match name {
        "strangers" => Ok(strangers::run),
        "greetings" => Ok(greetings::run),
        "unread" => Ok(unread::run),
        "patterns" => Ok(patterns::run),
        "fuzz" => Ok(fuzz::run),
        other => Err(format!("there is no attack {other}")),
    }
}
