//! `rdma-sync`: parses the flags, lets the library sync the trees, and prints its
//! events: changes and errors as they happen, progress on a terminal, and a summary, or
//! JSON lines. The worst event decides the exit code.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod flags;
mod observer;
#[path = "../shared/mod.rs"]
mod shared;

use flags::Flags;
use observer::SyncObserver;
use shared::exit::{Exit, interrupt_signal, print_copy_error, print_error};
use shared::records::Records;
use shared::trust_prompt;
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
    flags.output.start_logs();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
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
    let exit = runtime.block_on(run(&flags));
    // A walk or a flush may still run on its own thread: do not wait for it.
    runtime.shutdown_background();
    exit
}

async fn run(flags: &Flags) -> ExitCode {
    let json = flags.output.json;
    if let Some(path) = &flags.wait {
        return match wait(path, Duration::from_secs(flags.wait_timeout)).await {
            Ok(_) => Exit::Done.into(),
            Err(fault) => print_error(&fault, None, Exit::Failed, json),
        };
    }
    let options = match flags.options() {
        Ok(options) => options,
        Err(error) => return error.print(json),
    };
    let session = server_of(&options);
    let session = session.map(|remote| flags.connection.session(remote, None, true));
    let mut session = match session {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return error.print(json),
        Err(error) => return print_copy_error(&error, json),
    };
    let records = match Records::open(&flags.records) {
        Ok(records) => records,
        Err(error) => return print_error(&error, None, Exit::Usage, json),
    };
    session.trace = records.trace();
    let mut observer = SyncObserver::new(flags);
    let config_dir = session.connect.config_dir.clone();
    if flags.watch {
        let stop = interrupt_watch();
        let status = flags.status_file.clone();
        let followed = trust_prompt::with_trust_prompt(&config_dir, async || {
            follow(&options, session.clone(), status.clone(), &mut observer, stop.clone()).await
        });
        return match followed.await {
            Ok(()) => {
                records.finish(None, Exit::Interrupted);
                Exit::Interrupted.into()
            }
            Err(error) => print_copy_error(&error, json),
        };
    }
    let mut stop = pin!(interrupt_signal());
    let done = trust_prompt::with_trust_prompt(&config_dir, async || {
        sync(&options, session.clone(), &mut observer, stop.as_mut()).await
    });
    match done.await {
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

/// Becomes true when a signal ends the command.
fn interrupt_watch() -> watch::Receiver<bool> {
    let (stop, stopped) = watch::channel(false);
    let interrupted = interrupt_signal();
    tokio::spawn(async move {
        interrupted.await;
        stop.send_replace(true);
    });
    stopped
}
