//! `rdma-mount`: flags become options once, the library mounts and serves. In the
//! background it is this command again: the one that was called waits until the mount
//! stands, or says why it does not.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod background;
mod flags;
mod fstab;
#[path = "../shared/mod.rs"]
#[allow(dead_code)] // what only copies say
mod shared;
mod show;
mod telling;

use flags::Flags;
use shared::ask;
use shared::ending::{Exit, complain, interrupted};
use std::pin::pin;
use std::process::ExitCode;
use verbatim_client::copy::CopyError;
use verbatim_client::mount::{Mount, MountError, MountOptions, is_away};
use verbatim_telemetry::port::Port;

fn main() -> ExitCode {
    let flags = match Flags::read() {
        Ok(flags) => flags,
        Err((error, json)) => return error.told(json),
    };
    let json = flags.voice.json;
    if let Some(mountpoint) = &flags.status {
        return show::status(mountpoint, json);
    }
    let options = match flags.options() {
        Ok(options) => options,
        Err(error) => return error.told(json),
    };
    if !flags.foreground && !flags.background {
        return match background::start() {
            Ok(exit) => exit,
            Err(error) => complain(
                &format!("cannot start in the background: {error}"),
                None,
                Exit::Failed,
                json,
            ),
        };
    }
    flags.voice.start_logs();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            return complain(&format!("cannot start: {error}"), None, Exit::Failed, json);
        }
    };
    let exit = runtime.block_on(run(&flags, options));
    // Whoever still waits for the server is told by the kernel that the mount is gone.
    runtime.shutdown_background();
    exit
}

async fn run(flags: &Flags, options: MountOptions) -> ExitCode {
    let json = flags.voice.json;
    let session = match flags.connection.session(&options.remote, None, true) {
        Ok(session) => session,
        Err(error) => return error.told(json),
    };
    // In the background this process is somewhere else.
    let metrics = flags.metrics_file.as_ref().map(std::path::absolute);
    let metrics = match metrics.transpose() {
        Ok(metrics) => metrics,
        Err(error) => return complain(&error, None, Exit::Usage, json),
    };
    let port = match flags.metrics {
        Some(address) => match Port::bind(address).await {
            Ok(port) => Some(port),
            Err(error) => return complain(&error, Some(error.hint()), Exit::Failed, json),
        },
        None => None,
    };
    let config_dir = session.connect.config_dir.clone();
    // Before anybody can see the mount: who is told to end after that must not leave it behind.
    let mut stop = pin!(interrupted());
    let started = ask::introduced(&config_dir, async || {
        match Mount::start(options.clone(), session.clone(), &mut stop).await {
            Err(MountError::Client(error)) => Err(CopyError::Client(error)),
            other => Ok(other),
        }
    });
    let mount = match started.await {
        Ok(Ok(mount)) => mount,
        Ok(Err(error)) if error.is_interruption() => {
            return complain(&error, None, Exit::Interrupted, json);
        }
        Ok(Err(error)) => return complain(&error, error.hint(), Exit::Failed, json),
        Err(error) => return complain(&error, hint(&error), Exit::because_of(&error), json),
    };
    if let Err(error) = stands(flags, &options) {
        let cause = format!("cannot go into the background: {error}");
        return complain(&cause, None, Exit::Failed, json);
    }
    let teller = mount.teller();
    if let Some(port) = port {
        tracing::info!(address = %port.address(), "numbers are shown");
        tokio::spawn(telling::show(teller.clone(), options.mountpoint.clone(), port));
    }
    let progress = json && !flags.background;
    let mut progress = progress.then(|| telling::Progress::new(teller.clone()));
    let telling = telling::tell(teller.clone(), metrics.clone(), progress.as_mut());
    let stayed = tokio::select! {
        stayed = mount.stay(stop) => stayed,
        () = telling => unreachable!("it tells for ever"),
    };
    if let Some(progress) = &mut progress {
        progress.tell();
    }
    if let Some(path) = &metrics {
        telling::write(&teller, path);
    }
    match stayed {
        Ok(()) => Exit::Done.into(),
        Err(error) => complain(&error, error.hint(), Exit::Failed, json),
    }
}

/// Says that the mount stands; in the background nobody listens from then on.
fn stands(flags: &Flags, options: &MountOptions) -> std::io::Result<()> {
    let at = options.mountpoint.display();
    if flags.background {
        return background::stands(flags.log_file.as_deref());
    }
    if flags.voice.json {
        let at = at.to_string();
        println!("{}", serde_json::json!({ "event": "mounted", "mountpoint": at }));
    } else if !flags.voice.quiet {
        println!("mounted on {at}");
    }
    Ok(())
}

/// What to do when the server is not reached: what is here can be shown without it.
fn hint(error: &CopyError) -> Option<String> {
    let CopyError::Client(cause) = error else { return error.hint() };
    let offline = "rdma-mount --offline shows what is in the cache";
    match error.hint() {
        Some(hint) if is_away(cause) => Some(format!("{hint}; {offline}")),
        None if is_away(cause) => Some(offline.to_owned()),
        hint => hint,
    }
}
