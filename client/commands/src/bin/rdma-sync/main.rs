//! `rdma-sync`: flags become options once, the library makes the trees equal, and
//! what it tells is printed: changes and errors as they come, progress on a
//! terminal, a summary at the end, or JSON lines. The exit code is the worst that
//! happened.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod flags;
#[path = "../shared/mod.rs"]
mod shared;
mod show;

use flags::Flags;
use shared::ask;
use shared::ending::{Exit, complain, interrupted, refused};
use shared::records::Records;
use show::Show;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;
use verbatim_client::sync::follow::follow;
use verbatim_client::sync::wait::wait;
use verbatim_client::sync::{server_of, sync};

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = Flags::read();
    flags.voice.start_logs();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return complain(
                &format!("cannot start: {error}"),
                None,
                Exit::Failed,
                flags.voice.json,
            );
        }
    };
    let exit = runtime.block_on(run(&flags));
    // A walk or a flush may still be at work on a thread of its own: do not wait for it.
    runtime.shutdown_background();
    exit
}

async fn run(flags: &Flags) -> ExitCode {
    let json = flags.voice.json;
    if let Some(path) = &flags.wait {
        return match wait(path, Duration::from_secs(flags.wait_timeout)).await {
            Ok(_) => Exit::Done.into(),
            Err(fault) => complain(&fault, None, Exit::Failed, json),
        };
    }
    let options = match flags.options() {
        Ok(options) => options,
        Err(error) => return error.told(json),
    };
    let session = server_of(&options);
    let session = session.map(|remote| flags.connection.session(remote, None, true));
    let mut session = match session {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return error.told(json),
        Err(error) => return refused(&error, json),
    };
    let records = match Records::begin(&flags.records) {
        Ok(records) => records,
        Err(error) => return complain(&error, None, Exit::Usage, json),
    };
    session.trace = records.trace();
    let mut show = Show::new(flags);
    let config_dir = session.connect.config_dir.clone();
    if flags.watch {
        let stop = interruption();
        let status = flags.status_file.clone();
        let followed = ask::introduced(&config_dir, async || {
            follow(&options, session.clone(), status.clone(), &mut show, stop.clone()).await
        });
        return match followed.await {
            Ok(()) => {
                records.end(None, Exit::Interrupted);
                Exit::Interrupted.into()
            }
            Err(error) => refused(&error, json),
        };
    }
    let mut stop = pin!(interrupted());
    let done = ask::introduced(&config_dir, async || {
        sync(&options, session.clone(), &mut show, stop.as_mut()).await
    });
    match done.await {
        Ok(summary) => {
            let exit = show.finish(&summary);
            records.end(Some(&summary), exit);
            exit.into()
        }
        Err(error) => {
            records.end_before(&error);
            refused(&error, json)
        }
    }
}

/// Turns true when this is to end.
fn interruption() -> watch::Receiver<bool> {
    let (stop, stopped) = watch::channel(false);
    let interrupted = interrupted();
    tokio::spawn(async move {
        interrupted.await;
        stop.send_replace(true);
    });
    stopped
}
