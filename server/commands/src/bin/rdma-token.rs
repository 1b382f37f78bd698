//! `rdma-token`: makes, lists and revokes the named tokens that `rdma-serve`
//! lets in. The server keeps public halves only; the token itself is printed
//! once. A running server follows within a second.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

#[path = "shared/mod.rs"]
mod shared;

use clap::{Parser, Subcommand};
use shared::complain;
use std::path::PathBuf;
use std::process::ExitCode;
use verbatim_control::{ClientKey, ControlError, Grant, Token, TokenStore, unix_now};
use verbatim_server::config::Config;
use verbatim_server::config::duration;
use verbatim_usage::{is_all_taken, note, out, print_out};

/// Make, list and revoke the tokens that rdma-serve lets in.
///
/// A token is a secret key; the server stores its public half, what it may do and
/// until when. A running server follows within a second: revoking a token ends the
/// sessions that came in with it.
///
/// Exit codes: 0 done, 1 not done, 2 bad usage or configuration.
#[derive(Parser)]
#[command(name = "rdma-token", version, max_term_width = 100)]
struct Flags {
    #[command(subcommand)]
    task: Task,

    /// Use the tokens in DIR [default: as the server's configuration says].
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Read the server's configuration from FILE [default: /etc/verbatim/rdma-serve.toml].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// Make a token, and print it.
    ///
    /// This is the only time it is shown. The other side puts it into a file that only
    /// its user can read and names that file in RDMA_TOKEN_FILE.
    Add {
        /// What to call it: letters, digits and . _ @ -.
        name: String,

        /// An export it is good for, as NAME:ro or NAME:rw; may be given many times.
        ///
        /// *:ro is every export. Never more than the export itself allows.
        #[arg(long = "export", value_name = "NAME:MODE", required = true)]
        exports: Vec<Grant>,

        /// How long it is good [default: 30d].
        ///
        /// A number with s, m, h, d or w behind it, or never.
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Expiry>,

        /// Write the token to a new FILE that only you can read, instead of printing it.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// List tokens: name, what for, how long still, public key.
    List {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Take a token away, and end the sessions that came in with it.
    Revoke {
        /// Its name.
        name: String,
    },
}

/// How long a token is good, in seconds; none for ever.
type Expiry = Option<u64>;

/// What a token gets unless told otherwise: 30 days.
const EXPIRES_SECONDS: u64 = 30 * 24 * 3600;

fn expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" { Ok(None) } else { duration::parse(text).map(Some) }
}

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = verbatim_usage::parse::<Flags>();
    let state = match (flags.state, Config::find(flags.config.as_deref())) {
        (Some(state), _) => state,
        (None, Ok(config)) => config.state_dir(),
        (None, Err(error)) => return complain(&error, error.hint(), 2),
    };
    let store = TokenStore::in_dir(&state);
    let done = match flags.task {
        Task::Add { name, exports, expires, file } => {
            let seconds = expires.unwrap_or(Some(EXPIRES_SECONDS));
            add(&store, &name, exports, seconds, file)
        }
        Task::List { json } => list(&store, json),
        Task::Revoke { name } => store.revoke(&name),
    };
    match done {
        Ok(()) if !is_all_taken() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, error.hint(), 1),
    }
}

fn add(
    store: &TokenStore,
    name: &str,
    exports: Vec<Grant>,
    seconds: Expiry,
    file: Option<PathBuf>,
) -> Result<(), ControlError> {
    let (secret, now) = (ClientKey::generate()?, unix_now());
    let expires = seconds.map(|seconds| now + seconds);
    let token = Token::new(name, secret.public(), exports, expires).map_err(|error| {
        let (what, cause) = (format!("cannot add {name:?}"), error.to_string());
        ControlError::Local { what, cause, hint: None }
    })?;
    match file {
        // First the file: a token that nobody has is of no use, and no harm.
        Some(path) => {
            secret.save_new(&path)?;
            store.add(token, now).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
            note!("on the client: RDMA_TOKEN_FILE={} rdma-cp ...", path.display());
        }
        None => {
            store.add(token, now)?;
            if !print_out(format_args!("{}", *secret.to_token())) {
                store.revoke(name)?;
                return Err(ControlError::Local {
                    what: format!("cannot print the token of {name:?}"),
                    cause: "standard output does not take it, so it is revoked".into(),
                    hint: Some("name a file for it with --file".into()),
                });
            }
            note!("keep it in a file only its user can read, named in RDMA_TOKEN_FILE there");
        }
    }
    Ok(())
}

fn list(store: &TokenStore, json: bool) -> Result<(), ControlError> {
    let (tokens, now) = (store.load()?, unix_now());
    for token in tokens.iter() {
        let exports: Vec<String> = token.exports.iter().map(Grant::to_string).collect();
        let Token { name, key, expires, .. } = token;
        if json {
            let key = key.to_string();
            let line = serde_json::json!({
                "name": name, "exports": exports, "expires": expires,
                "expired": token.is_over(now), "key": key,
            });
            out!("{line}");
            continue;
        }
        let left = match expires {
            None => "never ends".into(),
            Some(end) if *end <= now => "expired".into(),
            Some(end) => format!("{} left", duration::show(end - now)),
        };
        out!("{name}  {}  {left}  {key}", exports.join(","));
    }
    Ok(())
}
