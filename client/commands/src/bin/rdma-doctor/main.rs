//! `rdma-doctor`: flags become facts and a report, which is printed, as text, as
//! JSON, as a script, as lines for a shell, or as metrics. With a server, the way
//! to it is tried for real. Changes nothing.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod flags;
#[path = "../shared/mod.rs"]
#[allow(dead_code)] // what only copies say
mod shared;
mod show;
mod status;
mod way;

use flags::Flags;
use shared::ask;
use shared::ending::{Exit, FlagError, complain, interrupted};
use shared::records::write_whole;
use std::pin::pin;
use std::process::ExitCode;
use verbatim_client::ClientError;
use verbatim_client::model::location::Remote;
use verbatim_client::probe::verdict::findings;
use verbatim_client::probe::{Examination, Trouble, examine};
use verbatim_client::session::command_error::CopyError;
use verbatim_doctor::{Facts, Report, fix_script, nccl_exports};
use verbatim_fabric::ports::Machine;
use verbatim_usage::{is_all_taken, note, out};

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = verbatim_usage::parse::<Flags>();
    flags.voice.start_logs();
    let json = flags.voice.json;
    if let Some(server) = &flags.server_status {
        return status::show(server, json);
    }
    let remote = match flags.remote() {
        Ok(remote) => remote,
        Err(error) => return error.told(json),
    };
    let mut facts = Facts::read(&flags.root, flags.wish(), flags.exports(), flags.pause());
    let found = match remote.map(|remote| try_server(&flags, &remote, &facts.machine)) {
        None => None,
        Some(Ok(found)) => Some(found),
        Some(Err(error)) => return error.told(json),
    };
    // What is chosen depends on who is to be reached.
    let local = found.as_ref().and_then(|found| found.route.as_ref()?.local);
    facts.wish.local = facts.wish.local.or(local);
    let mut report = Report::new(facts);
    if let Some(found) = &found {
        report.add(findings(found, &report.facts.machine));
    }
    tell(&flags, &report, found.as_ref())
}

/// Tries the way to a server.
fn try_server(flags: &Flags, remote: &Remote, machine: &Machine) -> Result<Examination, FlagError> {
    let session = flags.connection.session(remote, None, false)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| FlagError::usage(format!("cannot start: {error}"), None))?;
    let config_dir = session.connect.config_dir.clone();
    let examined = runtime.block_on(async {
        let mut stop = pin!(interrupted());
        let attempt = async || {
            let examined = examine(&session, &remote.path, machine, flags.disk.clone());
            let examined =
                async { examined.await.map_err(ClientError::from).map_err(CopyError::from) };
            ask::unless_interrupted(stop.as_mut(), examined).await
        };
        ask::introduced(&config_dir, attempt).await
    });
    // A probe that hangs is left behind.
    runtime.shutdown_background();
    examined.or_else(|error| match Exit::because_of(&error) {
        exit @ Exit::Interrupted => {
            Err(FlagError { cause: error.to_string(), hint: error.hint(), exit })
        }
        _ => Ok(Examination {
            peer: remote.peer(),
            trouble: Some(Trouble { step: "door", cause: error.to_string(), hint: error.hint() }),
            ..Examination::default()
        }),
    })
}

/// Prints what was asked for, and ends as the report does.
fn tell(flags: &Flags, report: &Report, found: Option<&Examination>) -> ExitCode {
    if let Some(path) = &flags.prom
        && let Err(error) = write_whole(path, &show::metrics(report))
    {
        return complain(&error, None, Exit::Connect, flags.voice.json);
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
    } else if flags.voice.json {
        out!("{}", show::json(report, found));
    } else if !flags.voice.quiet && flags.prom.is_none() {
        let way = found.map(way::text).unwrap_or_default();
        out!("{}", report.text(&way).trim_end());
    }
    ended(report.exit(), flags.voice.json)
}

/// Ends so, unless what was printed reached nobody: that must not look like a machine that is well.
fn ended(exit: u8, json: bool) -> ExitCode {
    match is_all_taken() {
        true => exit.into(),
        false => complain(&"cannot write to standard output", None, Exit::Connect, json),
    }
}
