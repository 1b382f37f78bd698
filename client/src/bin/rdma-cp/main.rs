//! `rdma-cp`: flags become options once, the library copies, and what it tells
//! is printed: files and errors as they come, progress on a terminal, a summary
//! at the end, or JSON lines. The exit code is the worst that happened.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod flags;
mod show;

use clap::Parser;
use flags::{Flags, Task};
use show::{Exit, Show};
use std::process::ExitCode;
use verbatim_client::copy::{CopyError, server_of};
use verbatim_client::{ClientError, copy, list};
use verbatim_proto::message::{Entry, EntryKind};

fn main() -> ExitCode {
    let flags = Flags::parse();
    verbatim_telemetry::start(flags.log_level(), flags.json);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}"), None, Exit::Failed),
    };
    let exit = runtime.block_on(run(flags));
    // A walk or a flush may still be at work on a thread of its own: do not wait for it.
    runtime.shutdown_background();
    exit
}

async fn run(flags: Flags) -> ExitCode {
    let task = match flags.task() {
        Ok(task) => task,
        Err(error) => return complain(&error.cause, error.hint, Exit::Usage),
    };
    match task {
        Task::List(remote) => {
            let session = match flags.session(&remote) {
                Ok(session) => session,
                Err(error) => return complain(&error.cause, error.hint, Exit::Connect),
            };
            let json = flags.json;
            let listed = list(&remote, session, flags.recursive, |entry| print_entry(&entry, json));
            match listed.await {
                Ok(failures) => {
                    failures.iter().for_each(|failure| show::print_failure(failure, json));
                    if failures.is_empty() { Exit::Done.into() } else { Exit::Failed.into() }
                }
                Err(error) => refused(&error),
            }
        }
        Task::Copy(options) => {
            let session = server_of(&options).map(|remote| flags.session(remote));
            let session = match session {
                Ok(Ok(session)) => session,
                Ok(Err(error)) => return complain(&error.cause, error.hint, Exit::Connect),
                Err(error) => return refused(&error),
            };
            let mut show = Show::new(&flags);
            let stop = async {
                if tokio::signal::ctrl_c().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            match copy(&options, session, &mut show, stop).await {
                Ok(summary) => show.finish(&summary).into(),
                Err(error) => refused(&error),
            }
        }
    }
}

fn refused(error: &CopyError) -> ExitCode {
    let exit = match error {
        CopyError::Usage { .. } => Exit::Usage,
        CopyError::Client(ClientError::Control(_) | ClientError::Fabric(_)) => Exit::Connect,
        CopyError::Client(ClientError::Fault(_)) => Exit::Failed,
    };
    complain(error, error.hint(), exit)
}

/// Says what is wrong and what to do about it.
fn complain(error: &dyn std::fmt::Display, hint: Option<String>, exit: Exit) -> ExitCode {
    eprintln!("rdma-cp: {}", show::clean(&error.to_string()));
    if let Some(hint) = hint {
        eprintln!("  hint: {}", show::clean(&hint));
    }
    exit.into()
}

fn print_entry(entry: &Entry, json: bool) {
    let (kind, slash) = match entry.kind {
        EntryKind::File => ("file", ""),
        EntryKind::Folder => ("folder", "/"),
        EntryKind::Symlink { .. } => ("symlink", "@"),
        EntryKind::Special => ("special", "|"),
    };
    let path = entry.path.to_string();
    if json {
        let Entry { size, mode, mtime_ns, .. } = entry;
        let line = serde_json::json!({
            "path": path, "kind": kind, "size": size, "mode": mode, "mtime_ns": mtime_ns,
        });
        println!("{line}");
    } else {
        println!(
            "{:>15} {path}{slash}",
            if kind == "file" { entry.size.to_string() } else { "-".into() }
        );
    }
}
