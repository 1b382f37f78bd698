//! Trust on first use: asks the person at the terminal whether to trust an unknown
//! server, as ssh does, and remembers a yes. A script is never asked: without a
//! terminal the server is rejected, and the error names the flag to add.

use super::exit::interrupt_signal;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use tokio::sync::oneshot;
use verbatim_client::ClientError;
use verbatim_client::session::command_error::CopyError;
use verbatim_control::{ControlError, Distrust, Fingerprint, KnownServers};
use verbatim_proto::{Code, Fault};
use verbatim_usage::note;

/// The most prompts; after as many invalid answers the server is rejected.
const ATTEMPTS_MAX: usize = 3;

/// Runs `attempt`. If it fails because the server is unknown, and the user trusts it, remembers the
/// server and runs `attempt` again.
pub async fn with_trust_prompt<T>(
    config_dir: &Path,
    mut attempt: impl AsyncFnMut() -> Result<T, CopyError>,
) -> Result<T, CopyError> {
    let error = match attempt().await {
        Err(error) => error,
        done => return done,
    };
    let Some((peer, presented)) = unknown_server(&error) else { return Err(error) };
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(error);
    }
    match ask_on_thread(peer.to_owned(), presented).await {
        Some(true) => {}
        Some(false) => return Err(error),
        None => {
            // Ends the line of the prompt.
            note!("");
            return Err(interrupted_error());
        }
    }
    let remembered = KnownServers::in_dir(config_dir).remember(peer, presented);
    remembered.map_err(ClientError::Control)?;
    attempt().await
}

/// Runs `attempt` until `stop` completes, for work that needs no clean end.
#[allow(dead_code, reason = "not every command has such a thing")]
pub async fn unless_interrupted<T>(
    stop: impl Future<Output = ()>,
    attempt: impl Future<Output = Result<T, CopyError>>,
) -> Result<T, CopyError> {
    tokio::select! {
        biased;
        () = stop => Err(interrupted_error()),
        done = attempt => done,
    }
}

fn interrupted_error() -> CopyError {
    ClientError::Fault(Fault::new(Code::Interrupted, "interrupted")).into()
}

/// Prompts on a separate thread. `None` on a signal: the thread is then abandoned.
async fn ask_on_thread(peer: String, presented: Fingerprint) -> Option<bool> {
    let interrupted = interrupt_signal();
    let (tell, answer) = oneshot::channel();
    let ask = move || {
        let answer = ask(&peer, presented, io::stderr(), io::stdin().lock());
        let _ = tell.send(answer.unwrap_or(false));
    };
    if std::thread::Builder::new().name("question".into()).spawn(ask).is_err() {
        return Some(false);
    }
    tokio::select! {
        () = interrupted => None,
        answer = answer => Some(answer.unwrap_or(false)),
    }
}

/// The server and its fingerprint, if the error is that it is unknown.
fn unknown_server(error: &CopyError) -> Option<(&str, Fingerprint)> {
    match error {
        CopyError::Client(ClientError::Control(ControlError::NotTrusted {
            peer,
            because: Distrust::Unknown { presented },
        })) => Some((peer, *presented)),
        _ => None,
    }
}

/// Shows the fingerprint, and accepts yes, no, or the fingerprint that the server printed.
fn ask(
    peer: &str,
    presented: Fingerprint,
    mut terminal: impl Write,
    mut answers: impl BufRead,
) -> io::Result<bool> {
    writeln!(terminal, "{peer} is not known here. It presents {presented}")?;
    writeln!(terminal, "Compare it with what the server printed at its start.")?;
    for _ in 0..ATTEMPTS_MAX {
        write!(terminal, "Trust it from now on (yes, no, or its fingerprint)? ")?;
        terminal.flush()?;
        let mut line = String::new();
        if answers.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        match line.trim() {
            "yes" => return Ok(true),
            "no" => return Ok(false),
            typed => match typed.parse::<Fingerprint>() {
                Ok(typed) => return Ok(typed == presented),
                Err(_) => writeln!(terminal, "Answer yes, no, or the fingerprint of the server.")?,
            },
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn answered(answers: &str) -> (bool, String) {
        let mut said = Vec::new();
        let presented = SHOWN.parse().expect("a fingerprint");
        let trusted = ask("host7:1", presented, &mut said, answers.as_bytes());
        (trusted.expect("memory takes and gives"), String::from_utf8(said).expect("text"))
    }

    #[test]
    fn only_yes_or_the_right_fingerprint_trusts_a_server() {
        let other = SHOWN.replace("AAA", "QQQ");
        for (answers, expected) in [
            ("yes\n", true),
            (&format!(" {SHOWN} \n"), true),
            ("no\n", false),
            (&format!("{other}\n"), false),
            ("", false),
            ("y\nyes\n", true),
            ("\n\n\nyes\n", false),
        ] {
            assert_eq!(answered(answers).0, expected, "{answers:?}");
        }
    }

    #[test]
    fn the_prompt_shows_the_server_and_its_fingerprint() {
        let (_, said) = answered("no\n");
        assert!(said.contains("host7:1") && said.contains(SHOWN), "{said}");
    }
}
