//! `rdma-mount`: flags become options once, the library mounts and serves. In the
//! background it is this command again: the one that was called waits until the mount
//! stands, or says why it does not.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod background;
mod flags;
mod fstab;
mod reporting;
#[path = "../shared/mod.rs"]
#[allow(dead_code)] // what only copies say
mod shared;
mod status;
mod stop_signal;

use flags::Flags;
use shared::exit::{Exit, print_error};
use shared::trust_prompt;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use verbatim_client::session::command_error::CopyError;
use verbatim_mount::{Mount, MountError, MountOptions, is_server_unreachable};
use verbatim_telemetry::port::Port;

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = match Flags::read() {
        Ok(flags) => flags,
        Err((error, json)) => return error.print(json),
    };
    let json = flags.output.json;
    if let Some(mountpoint) = &flags.status {
        return status::print(mountpoint, json);
    }
    let options = match flags.options() {
        Ok(options) => options,
        Err(error) => return error.print(json),
    };
    if !flags.foreground && !flags.background {
        return match background::start() {
            Ok(exit) => exit,
            Err(error) => print_error(
                &format!("cannot start in the background: {error}"),
                None,
                Exit::Failed,
                json,
            ),
        };
    }
    flags.output.start_logs();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            return print_error(&format!("cannot start: {error}"), None, Exit::Failed, json);
        }
    };
    let exit = runtime.block_on(run(&flags, options));
    // Whoever still waits for the server is told by the kernel that the mount is gone.
    runtime.shutdown_background();
    exit
}

async fn run(flags: &Flags, options: MountOptions) -> ExitCode {
    let json = flags.output.json;
    let session = match flags.connection.session(&options.remote, None, true) {
        Ok(session) => session,
        Err(error) => return error.print(json),
    };
    let ReportTargets { metrics, port, log } = match ReportTargets::open(flags).await {
        Ok(targets) => targets,
        Err(exit) => return exit,
    };
    let config_dir = session.connect.config_dir.clone();
    // Before anybody can see the mount: who is told to end after that must not leave it behind.
    let mut stop = pin!(stop_signal::stop_signal());
    let started = trust_prompt::with_trust_prompt(&config_dir, async || {
        match Mount::start(options.clone(), session.clone(), &mut stop).await {
            Err(MountError::Client(error)) => Err(CopyError::Client(error)),
            other => Ok(other),
        }
    });
    let mount = match started.await {
        Ok(Ok(mount)) => mount,
        Ok(Err(error)) if error.is_interruption() => {
            return print_error(&error, None, Exit::Interrupted, json);
        }
        Ok(Err(error)) => return print_error(&error, error.hint(), Exit::Failed, json),
        Err(error) => return print_error(&error, hint(&error), Exit::of_error(&error), json),
    };
    if let Err(error) = report_mounted(flags, &options, log.as_ref()) {
        // Nobody else would: it must not be left behind.
        let _ = mount.run_until(std::future::ready(())).await;
        let cause = format!("cannot go into the background: {error}");
        return print_error(&cause, None, Exit::Failed, json);
    }
    let status_handle = mount.status_handle();
    if let Some(port) = port {
        tracing::info!(address = %port.address(), "numbers are shown");
        tokio::spawn(reporting::serve_metrics(
            status_handle.clone(),
            options.mountpoint.clone(),
            port,
        ));
    }
    let fill_reporter = json && !flags.background;
    let mut fill_reporter =
        fill_reporter.then(|| reporting::FillReporter::new(status_handle.clone()));
    let reporting =
        reporting::report(status_handle.clone(), metrics.clone(), fill_reporter.as_mut());
    let ended = tokio::select! {
        ended = mount.run_until(stop) => ended,
        () = reporting => unreachable!("it tells for ever"),
    };
    if let Some(fill_reporter) = &mut fill_reporter {
        fill_reporter.report();
    }
    if let Some(path) = &metrics {
        reporting::write_metrics(&status_handle, path);
    }
    match ended {
        Ok(()) => Exit::Done.into(),
        Err(error) => print_error(&error, error.hint(), Exit::Failed, json),
    }
}

/// Where a mount tells how it is. What cannot be told there is found out before it stands.
struct ReportTargets {
    metrics: Option<PathBuf>,
    port: Option<Port>,
    log: Option<File>,
}

impl ReportTargets {
    async fn open(flags: &Flags) -> Result<Self, ExitCode> {
        let json = flags.output.json;
        // In the background this process is somewhere else.
        let metrics = flags.metrics_file.as_ref().map(std::path::absolute).transpose();
        let metrics = metrics.map_err(|error| print_error(&error, None, Exit::Usage, json))?;
        let log = flags.background.then(|| background::open_log(flags.log_file.as_deref()));
        let log = log.transpose().map_err(|error| {
            let path = flags.log_file.as_deref().unwrap_or_else(|| "/dev/null".as_ref());
            let cause = format!("cannot write the log to {}: {error}", path.display());
            print_error(&cause, None, Exit::Failed, json)
        })?;
        let port =
            match flags.metrics {
                Some(address) => Some(Port::bind(address).await.map_err(|error| {
                    print_error(&error, Some(error.hint()), Exit::Failed, json)
                })?),
                None => None,
            };
        Ok(Self { metrics, port, log })
    }
}

/// Says that the mount stands; in the background, where there is a log, nobody listens from then
/// on.
fn report_mounted(
    flags: &Flags,
    options: &MountOptions,
    log: Option<&File>,
) -> std::io::Result<()> {
    if let Some(log) = log {
        return background::report_mounted(log);
    }
    let at = options.mountpoint.display().to_string();
    let mut output = std::io::stdout();
    // It stands, whoever listens.
    let _ = match (flags.output.json, flags.output.quiet) {
        (true, _) => {
            let event = serde_json::json!({ "event": "mounted", "mountpoint": at });
            writeln!(output, "{event}")
        }
        (false, false) => writeln!(output, "mounted on {at}"),
        (false, true) => Ok(()),
    };
    Ok(())
}

/// What to do when the server is not reached: what is here can be shown without it.
fn hint(error: &CopyError) -> Option<String> {
    let CopyError::Client(cause) = error else { return error.hint() };
    let offline = "rdma-mount --offline shows what is in the cache";
    match error.hint() {
        Some(hint) if is_server_unreachable(cause) => Some(format!("{hint}; {offline}")),
        None if is_server_unreachable(cause) => Some(offline.to_owned()),
        hint => hint,
    }
}
