//! `rdma-cp`: parses the flags, lets the library copy, and prints its events: files and
//! errors as they happen, progress on a terminal, and a summary, or JSON lines. The
//! worst event decides the exit code.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod flags;
mod observer;
#[path = "../shared/mod.rs"]
mod shared;

use flags::{Flags, Task};
use observer::CopyObserver;
use shared::exit::{Exit, interrupt_signal, print_copy_error, print_error};
use shared::records::Records;
use shared::sanitize::clean;
use shared::trust_prompt;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use verbatim_client::cp::server_of;
use verbatim_client::{copy, list};
use verbatim_control::ClientKey;
use verbatim_proto::message::Entry;
use verbatim_usage::{note, out, print_out};

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = verbatim_usage::parse::<Flags>();
    flags.output.start_logs();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            return print_error(
                &format!("cannot start: {error}"),
                None,
                Exit::Failed,
                flags.output.json,
            );
        }
    };
    let exit = runtime.block_on(run(flags));
    // A walk or a flush may still run on its own thread: do not wait for it.
    runtime.shutdown_background();
    exit
}

async fn run(flags: Flags) -> ExitCode {
    let json = flags.output.json && !flags.to_stdout();
    let task = match flags.task() {
        Ok(task) => task,
        Err(error) => return error.print(json),
    };
    match task {
        Task::List(remote) => {
            let session = match flags.session(&remote) {
                Ok(session) => session,
                Err(error) => return error.print(json),
            };
            let config_dir = session.connect.config_dir.clone();
            let mut stop = pin!(interrupt_signal());
            let listed = trust_prompt::with_trust_prompt(&config_dir, async || {
                // Only -r makes a listing recursive; -a does not, as in ls.
                let print = |entry| print_entry(&entry, json);
                let listing = list(&remote, session.clone(), flags.recursive, print);
                trust_prompt::unless_interrupted(stop.as_mut(), listing).await
            });
            match listed.await {
                Ok(failures) => {
                    failures.iter().for_each(|failure| observer::print_unlisted(failure, json));
                    if failures.is_empty() { Exit::Done.into() } else { Exit::Failed.into() }
                }
                Err(error) => print_copy_error(&error, json),
            }
        }
        Task::NewToken(path) => new_token(&path, &flags),
        Task::Copy(options) => {
            let session = server_of(&options).map(|remote| flags.session(remote));
            let mut session = match session {
                Ok(Ok(session)) => session,
                Ok(Err(error)) => return print_error(&error.cause, error.hint, error.exit, json),
                Err(error) => return print_copy_error(&error, json),
            };
            let records = match Records::open(&flags.records) {
                Ok(records) => records,
                Err(error) => return print_error(&error, None, Exit::Usage, json),
            };
            session.trace = records.trace();
            let mut observer = CopyObserver::new(&flags, options.policy.task);
            let config_dir = session.connect.config_dir.clone();
            let mut stop = pin!(interrupt_signal());
            let copied = trust_prompt::with_trust_prompt(&config_dir, async || {
                copy(&options, session.clone(), &mut observer, stop.as_mut()).await
            });
            match copied.await {
                Ok(summary) => {
                    let exit = observer.finish(&summary);
                    records.finish(Some(&summary), exit);
                    exit.into()
                }
                Err(error) => {
                    records.finish_unstarted(&error);
                    print_copy_error(&error, json)
                }
            }
        }
    }
}

/// Generates a key; only the file gets the secret half.
fn new_token(path: &Path, flags: &Flags) -> ExitCode {
    let saved = ClientKey::generate().and_then(|key| key.save_new(path).map(|()| key.public()));
    let public = match saved {
        Ok(public) => public,
        Err(error) => return print_error(&error, error.hint(), Exit::Failed, flags.output.json),
    };
    let line = format!("{public} {}", clean(&user_at_host()));
    if flags.output.json {
        let path = path.display().to_string();
        out!("{}", serde_json::json!({ "event": "token", "path": path, "line": line }));
        return Exit::Done.into();
    }
    out!("{line}");
    if !flags.output.quiet {
        note!("on the server, add this line to authorized_keys in its state folder;");
        note!("here, give --token-file {} to be let in", path.display());
    }
    Exit::Done.into()
}

fn print_entry(entry: &Entry, json: bool) {
    let (kind, slash) = observer::kind_of(&entry.kind);
    let path = entry.path.to_string();
    let taken = if json {
        let Entry { size, mode, mtime_ns, .. } = entry;
        let line = serde_json::json!({
            "path": path, "kind": kind, "size": size, "mode": mode, "mtime_ns": mtime_ns,
        });
        print_out(format_args!("{line}"))
    } else {
        let size = if kind == "file" { entry.size.to_string() } else { "-".into() };
        print_out(format_args!("{size:>15} {path}{slash}"))
    };
    // A closed pipe (head, less) ends the listing: there is nothing else to do.
    if !taken {
        std::process::exit(Exit::Failed as i32);
    }
}

/// The comment of a public key: its user and host, for the server's administrator.
fn user_at_host() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => user.unwrap_or_else(|_| "client".into()),
        host => format!("{}@{host}", user.unwrap_or_else(|_| "client".into())),
    }
}
