//! `--reloadable`: a parent that stays as it was started, and the server as its child.
//! What a process gave up it cannot take back, and what it executes inherits that; so
//! at SIGHUP the child ends, and the parent, which gave up nothing, starts another one
//! that gives up its rights by the new configuration. The parent serves nobody and
//! reads nothing of clients. It owns the port, so that it is nobody else's meanwhile.
//! It owns the configuration, too: what it read and checked is what the child serves by,
//! and what the one before served by is kept until that listens. A new one that cannot
//! start costs its clients a moment, never the service.
//!
//! One server at a time: quotas, pins and who holds a target are counted in a process.
//! Live sessions end; their clients come back by themselves and go on where they were.

use crate::Flags;
use crate::shared::complain;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{Shutdown, sockopt};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use verbatim_control::TOKEN_VARIABLE;
use verbatim_server::config::Config;
use verbatim_server::{ServerError, bind_port, check, check_metrics};
use verbatim_telemetry::notify::Notifier;

/// Says in the environment that standard input is the port, and who holds it.
const KEPT_BY: &str = "RDMA_SERVE_KEPT_BY";

/// Says there where the text of the configuration is that the parent read.
const KEPT_CONFIG: &str = "RDMA_SERVE_KEPT_CONFIG";

/// What ps and the journal call the child: it is executed by another name, because a file of this
/// one may be that of a newer version by then.
const NAME: &str = "rdma-serve";

/// How long a server that ends may take, before it is killed: it waits for nobody.
const END_MAX: Duration = Duration::from_secs(30);

/// How long a server may take until it listens, where there is another one to go back to: what
/// systemd gives a service.
const START_MAX: Duration = Duration::from_secs(90);

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

/// Where the configuration is that a parent read, where this process is its child.
pub fn kept_config() -> Option<PathBuf> {
    std::env::var_os(KEPT_CONFIG).map(PathBuf::from)
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
pub fn keep(flags: &Flags, config: Config, text: String) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let kept = runtime.map_err(|error| complain(&format!("cannot wait: {error}"), None, 1));
    let kept = kept.and_then(|runtime| {
        let port = Port::take(config.listen).map_err(|error| {
            let error = cannot_listen(config.listen, &error);
            complain(&error, error.hint(), 1)
        })?;
        let (served, notifier) = (Served { config, text, port }, Notifier::from_environment());
        let keeper = Keeper { flags, notifier, served, before: None };
        runtime.block_on(keeper.run()).map_err(|e| complain(&format!("cannot serve: {e}"), None, 1))
    });
    kept.unwrap_or_else(|code| code)
}

struct Keeper<'f> {
    flags: &'f Flags,
    /// A server tells systemd that it is there; between two of them this one does, for so long as
    /// each may take to end and to start.
    notifier: Notifier,
    served: Served,
    /// What is gone back to if the server that was started last does not listen.
    before: Option<Before>,
}

impl Keeper<'_> {
    async fn run(mut self) -> io::Result<ExitCode> {
        let [mut hangup, mut term, mut int, mut ended] = [
            signal(SignalKind::hangup())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::child())?,
        ];
        let mut server = self.served.start()?;
        let mut stopping = false;
        loop {
            let stop = tokio::select! {
                // First: what is to stop is not started anew.
                biased;
                _ = term.recv() => true,
                _ = int.recv() => true,
                _ = hangup.recv(), if !stopping => {
                    match self.look_anew().await {
                        Ok(next) => self.exchange(&mut server, next).await?,
                        Err(error) => self.refuse(&error),
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
            let Some(status) = server.try_wait()? else {
                self.look_after(&server);
                continue;
            };
            match self.before.take() {
                Some(before) if !stopping => server = self.go_back(before.served)?,
                _ => {
                    // One that was told before it could listen to that has stopped all the same.
                    let told = stopping && status.signal() == Some(Signal::TERM.as_raw());
                    return Ok(if told { ExitCode::SUCCESS } else { code_of(status) });
                }
            }
        }
    }

    /// Reads the configuration again, and tries what can be tried while the server runs. Where it
    /// is no good nothing has changed.
    async fn look_anew(&self) -> Result<Next, Box<ServerError>> {
        let (config, text) = self.flags.config().map_err(ServerError::from)?;
        check(&config)?;
        let [now, then] = [&self.served.config, &config].map(|config| config.metrics.address());
        // What the server itself is in the way of shows when the next one starts.
        if !now.zip(then).is_some_and(|(now, then)| meet(now, then)) {
            check_metrics(&config.metrics).await?;
        }
        let port = match &self.served.port {
            port if port.asked == config.listen => Some(port.clone()),
            port => match Port::take(config.listen) {
                Ok(port) => Some(port),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && meet(port.at, config.listen) =>
                {
                    None
                }
                Err(error) => return Err(Box::new(cannot_listen(config.listen, &error))),
            },
        };
        Ok(Next { config, text, port })
    }

    /// Ends the server and starts the next one; the same again where its address cannot be had.
    async fn exchange(&mut self, server: &mut Child, next: Next) -> io::Result<()> {
        tracing::info!("configuration read: the server is started anew");
        self.look_after(server);
        self.end(server).await?;
        self.served.port.hush();
        let Next { config, text, port } = next;
        // Of the same port and in part of the same addresses as the one before, which nobody
        // listens on now: who connects at this moment is refused, and comes back.
        match port.map_or_else(|| Port::take(config.listen), Ok) {
            Ok(port) => {
                let served = std::mem::replace(&mut self.served, Served { config, text, port });
                // One that never listened is nothing to go back to.
                let served = self.before.take().map_or(served, |before| before.served);
                self.before = Some(Before { served, since: Instant::now() });
            }
            Err(error) => self.refuse(&cannot_listen(config.listen, &error)),
        }
        *server = self.served.start()?;
        self.notifier.tell_alive();
        Ok(())
    }

    /// Has a server end at once, and waits until it has.
    async fn end(&self, server: &mut Child) -> io::Result<()> {
        tell(server, Signal::HUP);
        let (begin, mut killed) = (Instant::now(), false);
        let mut beats = tokio::time::interval(LOOK_EVERY);
        while server.try_wait()?.is_none() {
            if begin.elapsed() > END_MAX && !std::mem::replace(&mut killed, true) {
                tracing::warn!("the server does not end and is killed");
                tell(server, Signal::KILL);
            }
            tokio::select! {
                _ = beats.tick() => self.notifier.tell_alive(),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
        Ok(())
    }

    fn refuse(&self, error: &ServerError) {
        let hint = error.hint().unwrap_or_default();
        tracing::error!(%error, hint, "new configuration rejected, the old one stays active");
        self.notifier.tell(&[], &format!("new configuration rejected: {error}"));
    }

    /// Looks whether a server listens by now that was started anew.
    fn look_after(&mut self, server: &Child) {
        let Some(before) = &self.before else { return };
        self.notifier.tell_alive();
        if self.served.port.is_listening() {
            self.before = None;
        } else if before.since.elapsed() > START_MAX {
            tracing::warn!("the server does not start and is killed");
            tell(server, Signal::KILL);
        }
    }

    /// Starts the server as it was before, because it did not start by what was read.
    fn go_back(&mut self, before: Served) -> io::Result<Child> {
        let hint = "the messages of the server that failed stand above";
        tracing::error!(
            hint,
            "new configuration rejected: no server starts with it, the old one stays active"
        );
        self.notifier.tell(&[], "new configuration rejected: no server starts with it");
        self.served.port.hush();
        self.served = before;
        self.served.start()
    }
}

/// What a server is started with.
struct Served {
    config: Config,
    /// The text of its file.
    text: String,
    port: Port,
}

/// What a server was started with, and since when there is another that does not listen yet.
struct Before {
    served: Served,
    since: Instant,
}

/// What the next server is to be started with. Its port may be free only when this one has ended.
struct Next {
    config: Config,
    text: String,
    port: Option<Port>,
}

impl Served {
    /// Starts the server, as this process was started.
    fn start(&self) -> io::Result<Child> {
        let port = OwnedFd::from(self.port.socket.try_clone()?);
        // One for each server: what gets hold of one cannot change what the next is started with.
        let named = |flags| memfd_create("rdma-serve.toml", flags);
        // Kernels before 6.3 do not know that flag, and later ones may insist on it.
        let text = named(MemfdFlags::NOEXEC_SEAL).or_else(|_| named(MemfdFlags::empty()))?;
        let mut text = File::from(text);
        text.write_all(self.text.as_bytes())?;
        let mut command = Command::new("/proc/self/exe");
        // A server has no use for it, and shows its environment to the user it becomes.
        command.env_remove(TOKEN_VARIABLE);
        command.arg0(NAME).args(std::env::args_os().skip(1)).stdin(Stdio::from(port));
        command.env(KEPT_CONFIG, format!("/proc/self/fd/{}", text.as_raw_fd()));
        command.env(KEPT_BY, std::process::id().to_string()).spawn()
    }
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> ServerError {
    ServerError::Listen { address, cause: error.to_string() }
}

/// The address that is served at.
#[derive(Clone)]
struct Port {
    /// As it is configured: its port may be 0.
    asked: SocketAddr,
    /// As it is.
    at: SocketAddr,
    socket: Arc<TcpStream>,
}

impl Port {
    fn take(asked: SocketAddr) -> io::Result<Self> {
        let mut socket = bind_port(asked)?;
        let at = rustix::net::getsockname(&socket)?.try_into()?;
        if asked.port() == 0 {
            // Named, because a port that is found for a socket goes when it no longer listens.
            socket = bind_port(at)?;
        }
        Ok(Self { asked, at, socket: Arc::new(socket) })
    }

    /// Whether a server listens there: the socket is also its own.
    fn is_listening(&self) -> bool {
        sockopt::socket_acceptconn(&self.socket).unwrap_or(false)
    }

    /// Has nobody wait there for a server that was killed.
    fn hush(&self) {
        if self.is_listening() {
            // It has just been listening, and there is no other reason to fail.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }
}

/// Whether one of two addresses is part of the other.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (all || one.ip() == other.ip())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_holds_the_one_before_is_had_when_nobody_listens_there() {
        let one = Port::take("127.0.0.1:0".parse().unwrap()).unwrap();
        rustix::net::listen(&one.socket, 8).unwrap();
        let all = SocketAddr::from(([0, 0, 0, 0], one.at.port()));
        let refused = Port::take(all).err().map(|error| error.kind());
        assert_eq!((refused, meet(one.at, all)), (Some(io::ErrorKind::AddrInUse), true));
        assert!(one.is_listening());
        one.hush();
        assert!(!one.is_listening());
        // Both are held: where a server does not start at the new one, it does at the old one.
        let all = Port::take(all).unwrap();
        rustix::net::listen(&all.socket, 8).unwrap();
        assert!(all.is_listening() && std::net::TcpStream::connect(one.at).is_ok());
        all.hush();
        rustix::net::listen(&one.socket, 8).unwrap();
        assert!(one.is_listening() && std::net::TcpStream::connect(one.at).is_ok());
    }

    #[test]
    fn addresses_meet_that_are_one_or_of_which_one_is_all() {
        let met = |one: &str, other: &str| meet(one.parse().unwrap(), other.parse().unwrap());
        assert!(met("127.0.0.1:7", "0.0.0.0:7") && met("[::]:7", "10.0.0.1:7"));
        assert!(met("10.0.0.1:7", "10.0.0.1:7"));
        assert!(!met("127.0.0.1:7", "10.0.0.1:7") && !met("127.0.0.1:7", "0.0.0.0:8"));
    }
}
