//! `rdma-mount`: parses the flags and lets the library mount and serve. By default it
//! starts itself again in the background and waits until the file system is mounted, or
//! prints why it is not.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod background;
mod flags;
mod fstab;
mod reporting;
#[path = "../shared/mod.rs"]
#[allow(dead_code)] // parts that only rdma-cp and rdma-sync use
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
    // Readers that wait for the server get an error from the kernel.
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
    // Installed before mounting, so that no signal leaves a dead mount behind.
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
        // Unmount: no other process would.
        let _ = mount.run_until(std::future::ready(())).await;
        let cause = format!("cannot go into the background: {error}");
        return print_error(&cause, None, Exit::Failed, json);
    }
    let status_handle = mount.status_handle();
    if let Some(port) = port {
        tracing::info!(address = %port.address(), "metrics are served");
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
        () = reporting => unreachable!("reporting never ends"),
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

/// The files and ports that a mount reports to, opened before mounting so that errors show early.
struct ReportTargets {
    metrics: Option<PathBuf>,
    port: Option<Port>,
    log: Option<File>,
}

impl ReportTargets {
    async fn open(flags: &Flags) -> Result<Self, ExitCode> {
        let json = flags.output.json;
        // The background process changes its working directory.
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

/// Reports that the file system is mounted. In the background the output is closed afterwards.
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
    // The mount works, even if its output is closed.
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

/// The hint for an unreachable server: --offline shows the cache without it.
fn hint(error: &CopyError) -> Option<String> {
    let CopyError::Client(cause) = error else { return error.hint() };
    let offline = "rdma-mount --offline shows what is in the cache";
    match error.hint() {
        Some(hint) if is_server_unreachable(cause) => Some(format!("{hint}; {offline}")),
        None if is_server_unreachable(cause) => Some(offline.to_owned()),
        hint => hint,
    }
}
