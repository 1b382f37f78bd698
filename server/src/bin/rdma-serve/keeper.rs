//! `--reloadable`: a parent that stays as it was started, and the server as its child.
//! What a process gave up it cannot take back, and what it executes inherits that; so
//! at SIGHUP the child ends, and the parent, which gave up nothing, starts another one
//! that gives up its rights by the new configuration. The parent serves nobody and
//! reads nothing of clients. It owns the port, so that it is nobody else's meanwhile.
//!
//! One server at a time: quotas, pins and who holds a target are counted in a process.
//! Live sessions end; their clients come back by themselves and go on where they were.

use crate::Flags;
use crate::shared::complain;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use verbatim_server::config::Config;
use verbatim_server::{ServerError, take_port};
use verbatim_telemetry::notify::Notifier;

/// Says in the environment that standard input is the port, and who holds it.
const KEPT_BY: &str = "RDMA_SERVE_KEPT_BY";

/// What ps and the journal call the child: it is executed by another name, because a file of this
/// one may be that of a newer version by then.
const NAME: &str = "rdma-serve";

/// How long a server that ends may take, before it is killed: it waits for nobody.
const END_MAX: Duration = Duration::from_secs(30);

/// How often it is looked whether it has ended, beside when the kernel says so.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The port that a parent holds, where this process is its child. Ends with that parent.
pub fn kept_port() -> Option<io::Result<TcpStream>> {
    std::env::var_os(KEPT_BY)?;
    // Without it, only the name is wrong.
    let _ = std::fs::write("/proc/self/comm", NAME);
    Some(end_with_parent().and_then(|()| {
        let port = TcpStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Not a socket: somebody set the variable by hand.
        rustix::net::getsockname(&port)?;
        Ok(port)
    }))
}

/// Has the kernel end this process with the one that started it. Becoming another user undoes
/// that, so it is asked for again then.
pub fn end_with_parent() -> io::Result<()> {
    let Some(parent) = std::env::var_os(KEPT_BY) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have gone before that counted.
    let now = getppid().map(|pid| pid.as_raw_pid().to_string());
    match now.is_some_and(|now| parent.as_encoded_bytes() == now.as_bytes()) {
        true => Ok(()),
        false => Err(io::Error::other("who started it is gone")),
    }
}

/// Keeps a server until it ends or is told to, and starts it anew at SIGHUP.
pub fn keep(flags: &Flags, config: &Config) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let kept = runtime.map_err(|error| complain(&format!("cannot wait: {error}"), None, 1));
    let kept = kept.and_then(|runtime| {
        let port = Port::take(config.listen).map_err(|error| complain(&error, error.hint(), 1))?;
        let keeper = Keeper { flags, port };
        runtime.block_on(keeper.run()).map_err(|e| complain(&format!("cannot serve: {e}"), None, 1))
    });
    kept.unwrap_or_else(|code| code)
}

struct Keeper<'f> {
    flags: &'f Flags,
    port: Port,
}

impl Keeper<'_> {
    async fn run(mut self) -> io::Result<ExitCode> {
        let [mut hangup, mut term, mut int, mut ended] = [
            signal(SignalKind::hangup())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::child())?,
        ];
        let mut server = self.start()?;
        let mut stopping = false;
        loop {
            let stop = tokio::select! {
                // First: what is to stop is not started anew.
                biased;
                _ = term.recv() => true,
                _ = int.recv() => true,
                _ = hangup.recv(), if !stopping => {
                    match self.look_anew() {
                        Ok(()) => {
                            tracing::info!("configuration read: the server is started anew");
                            end(&mut server).await?;
                            server = self.start()?;
                        }
                        Err(error) => tell_refusal(&error),
                    }
                    false
                }
                _ = ended.recv() => false,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            if stop {
                stopping = true;
                tell(&server, Signal::TERM);
            }
            if let Some(status) = server.try_wait()? {
                // One that was told before it could listen to that has stopped all the same.
                let told = stopping && status.signal() == Some(Signal::TERM.as_raw());
                return Ok(if told { ExitCode::SUCCESS } else { code_of(status) });
            }
        }
    }

    /// Starts the server, as this process was started.
    fn start(&self) -> io::Result<Child> {
        let port = OwnedFd::from(self.port.socket.try_clone()?);
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).args(std::env::args_os().skip(1)).stdin(Stdio::from(port));
        command.env(KEPT_BY, std::process::id().to_string()).spawn()
    }

    /// Reads the configuration again, and takes its port where that is another one. Where it is no
    /// good nothing has changed.
    fn look_anew(&mut self) -> Result<(), Box<ServerError>> {
        let config = self.flags.config().map_err(ServerError::from)?;
        verbatim_server::check(&config)?;
        if config.listen != self.port.asked {
            self.port = Port::take(config.listen)?;
        }
        Ok(())
    }
}

fn tell_refusal(error: &ServerError) {
    let hint = error.hint().unwrap_or_default();
    tracing::error!(%error, hint, "configuration not taken: the one before counts");
    Notifier::from_environment().tell(&[], &format!("configuration not taken: {error}"));
}

/// The address that is served at.
struct Port {
    /// As it is configured: its port may be 0.
    asked: SocketAddr,
    socket: TcpStream,
}

impl Port {
    fn take(asked: SocketAddr) -> Result<Self, Box<ServerError>> {
        let socket = take_port(asked).and_then(|socket| match asked.port() {
            // Named, because a port that is found for a socket goes when it no longer listens.
            0 => take_port(rustix::net::getsockname(&socket)?.try_into()?),
            _ => Ok(socket),
        });
        let cannot = |error: io::Error| {
            Box::new(ServerError::Listen { address: asked, cause: error.to_string() })
        };
        socket.map(|socket| Self { asked, socket }).map_err(cannot)
    }
}

/// Has a server end at once, and waits until it has.
async fn end(server: &mut Child) -> io::Result<()> {
    tell(server, Signal::HUP);
    let (begin, mut killed) = (Instant::now(), false);
    while server.try_wait()?.is_none() {
        if begin.elapsed() > END_MAX && !std::mem::replace(&mut killed, true) {
            tracing::warn!("the server does not end and is killed");
            tell(server, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

fn tell(server: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(server.id()).ok().and_then(Pid::from_raw) {
        // One that is gone needs no telling.
        let _ = kill_process(pid, signal);
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    if code.is_none() {
        tracing::error!(%status, "the server died");
    }
    ExitCode::from(code.unwrap_or(1))
}
