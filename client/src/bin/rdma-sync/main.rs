//! `rdma-sync`: flags become options once, the library makes the trees equal, and
//! what it tells is printed: changes and errors as they come, progress on a
//! terminal, a summary at the end, or JSON lines. The exit code is the worst that
//! happened.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

#[path = "../rdma-cp/ask.rs"]
mod ask;
#[path = "../rdma-cp/carrier.rs"]
#[allow(dead_code)] // it has more for rdma-cp
mod carrier;
mod connection;
mod flags;
mod show;

use flags::Flags;
use show::{Exit, Show};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use verbatim_client::ClientError;
use verbatim_client::copy::CopyError;
use verbatim_client::current::wait::wait;
use verbatim_client::sync::follow::follow;
use verbatim_client::sync::{server_of, sync};
use verbatim_telemetry::Format;

fn main() -> ExitCode {
    let flags = Flags::read();
    let format = if flags.json { Format::Json } else { Format::Auto };
    verbatim_telemetry::start(flags.log_level(), format);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return complain(&format!("cannot start: {error}"), None, Exit::Failed, flags.json);
        }
    };
    let exit = runtime.block_on(run(&flags));
    // A walk or a flush may still be at work on a thread of its own: do not wait for it.
    runtime.shutdown_background();
    exit
}

async fn run(flags: &Flags) -> ExitCode {
    let json = flags.json;
    if let Some(path) = &flags.wait {
        return match wait(path, Duration::from_secs(flags.wait_timeout)).await {
            Ok(_) => Exit::Done.into(),
            Err(fault) => complain(&fault, None, Exit::Failed, json),
        };
    }
    let options = match flags.options() {
        Ok(options) => options,
        Err(error) => return complain(&error.cause, error.hint, error.exit, json),
    };
    let session = match server_of(&options).map(|remote| flags.connection.session(remote)) {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => {
            let exit = if error.is_key { Exit::Connect } else { Exit::Usage };
            return complain(&error.cause, error.hint, exit, json);
        }
        Err(error) => return refused(&error, json),
    };
    let mut show = Show::new(flags);
    let config_dir = session.connect.config_dir.clone();
    if flags.watch {
        let stop = interruption();
        let status = flags.status_file.clone();
        let followed = ask::introduced(&config_dir, async || {
            follow(&options, session.clone(), status.clone(), &mut show, stop.clone()).await
        });
        return match followed.await {
            Ok(()) => Exit::Interrupted.into(),
            Err(error) => refused(&error, json),
        };
    }
    let done = ask::introduced(&config_dir, async || {
        sync(&options, session.clone(), &mut show, interrupted()).await
    });
    match done.await {
        Ok(summary) => show.finish(&summary).into(),
        Err(error) => refused(&error, json),
    }
}

/// Completes when the user, or a batch system whose time is up, wants this to end.
async fn interrupted() {
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        }
        _ => std::future::pending().await,
    }
}

/// Turns true when this is to end.
fn interruption() -> watch::Receiver<bool> {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        interrupted().await;
        stop.send_replace(true);
    });
    stopped
}

fn refused(error: &CopyError, json: bool) -> ExitCode {
    let exit = match error {
        CopyError::Usage { .. } => Exit::Usage,
        CopyError::Client(ClientError::Fault(_)) => Exit::Failed,
        CopyError::Client(_) => Exit::Connect,
    };
    complain(error, error.hint(), exit, json)
}

/// Says what is wrong and what to do about it.
fn complain(
    error: &dyn std::fmt::Display,
    hint: Option<String>,
    exit: Exit,
    json: bool,
) -> ExitCode {
    if json {
        let cause = error.to_string();
        let line = serde_json::json!({
            "event": "error", "cause": cause, "hint": hint, "exit": exit as u8,
        });
        println!("{line}");
        return exit.into();
    }
    eprintln!("rdma-sync: {}", show::clean(&error.to_string()));
    if let Some(hint) = hint {
        eprintln!("  hint: {}", show::clean(&hint));
    }
    exit.into()
}
