//! `rdma-doctor`: reads the facts of this machine and prints a report as text, JSON, a
//! shell script, environment variables, or metrics. With a server it probes each
//! transport to it. Changes nothing.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod flags;
mod formats;
mod probe_report;
mod server_status;
#[path = "../shared/mod.rs"]
#[allow(dead_code)] // parts that only rdma-cp and rdma-sync use
mod shared;

use flags::Flags;
use shared::exit::{Exit, FlagError, interrupt_signal, print_error};
use shared::records::replace_file;
use shared::trust_prompt;
use std::pin::pin;
use std::process::ExitCode;
use verbatim_client::ClientError;
use verbatim_client::model::location::Remote;
use verbatim_client::probe::verdict::findings;
use verbatim_client::probe::{Examination, ProbeFailure, examine};
use verbatim_client::session::command_error::CopyError;
use verbatim_doctor::{Facts, Report, fix_script, nccl_exports};
use verbatim_fabric::ports::Machine;
use verbatim_usage::{is_all_taken, note, out};

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = verbatim_usage::parse::<Flags>();
    flags.output.start_logs();
    let json = flags.output.json;
    if let Some(server) = &flags.server_status {
        return server_status::print(server, json);
    }
    let remote = match flags.remote() {
        Ok(remote) => remote,
        Err(error) => return error.print(json),
    };
    let mut facts = Facts::read(&flags.root, flags.wish(), flags.exports(), flags.pause());
    let found = match remote.map(|remote| probe_server(&flags, &remote, &facts.machine)) {
        None => None,
        Some(Ok(found)) => Some(found),
        Some(Err(error)) => return error.print(json),
    };
    // The route to the server decides which local address is used.
    let local = found.as_ref().and_then(|found| found.route.as_ref()?.local);
    facts.wish.local = facts.wish.local.or(local);
    let mut report = Report::new(facts);
    if let Some(found) = &found {
        report.add(findings(found, &report.facts.machine));
    }
    print_report(&flags, &report, found.as_ref())
}

/// Probes the transports to a server.
fn probe_server(
    flags: &Flags,
    remote: &Remote,
    machine: &Machine,
) -> Result<Examination, FlagError> {
    let session = flags.connection.session(remote, None, false)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| FlagError::usage(format!("cannot start: {error}"), None))?;
    let config_dir = session.connect.config_dir.clone();
    let examined = runtime.block_on(async {
        let mut stop = pin!(interrupt_signal());
        let attempt = async || {
            let examined = examine(&session, &remote.path, machine, flags.disk.clone());
            let examined =
                async { examined.await.map_err(ClientError::from).map_err(CopyError::from) };
            trust_prompt::unless_interrupted(stop.as_mut(), examined).await
        };
        trust_prompt::with_trust_prompt(&config_dir, attempt).await
    });
    // Do not wait for a probe that hangs.
    runtime.shutdown_background();
    examined.or_else(|error| match Exit::of_error(&error) {
        exit @ Exit::Interrupted => {
            Err(FlagError { cause: error.to_string(), hint: error.hint(), exit })
        }
        _ => Ok(Examination {
            peer: remote.peer(),
            trouble: Some(ProbeFailure {
                step: "door",
                cause: error.to_string(),
                hint: error.hint(),
            }),
            ..Examination::default()
        }),
    })
}

/// Prints the report in the requested format; returns its exit code.
fn print_report(flags: &Flags, report: &Report, found: Option<&Examination>) -> ExitCode {
    if let Some(path) = &flags.prom
        && let Err(error) = replace_file(path, &formats::metrics(report))
    {
        return print_error(&error, None, Exit::Connect, flags.output.json);
    }
    if flags.env {
        match &report.chosen {
            Ok(places) => out!("{}", nccl_exports(places).trim_end()),
            Err(reasons) => {
                reasons.iter().for_each(|reason| note!("# {reason}: {}", reason.hint()));
            }
        }
    } else if flags.fix_script {
        out!("{}", fix_script(&report.findings).trim_end());
    } else if flags.output.json {
        out!("{}", formats::json(report, found));
    } else if !flags.output.quiet && flags.prom.is_none() {
        let probe = found.map(probe_report::text).unwrap_or_default();
        out!("{}", report.text(&probe).trim_end());
    }
    checked_exit(report.exit(), flags.output.json)
}

/// The exit code, or an error if the output could not be written: a lost report must not look like
/// a healthy machine.
fn checked_exit(exit: u8, json: bool) -> ExitCode {
    match is_all_taken() {
        true => exit.into(),
        false => print_error(&"cannot write to standard output", None, Exit::Connect, json),
    }
}
