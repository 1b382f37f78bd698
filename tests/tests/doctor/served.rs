//! A server in this process, on a machine that is a record: what it finds out about
//! that machine is what tests look at. Stopped when it is dropped.

use crate::{SEEN_MAX, recorded};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use tempfile::TempDir;
use tokio::sync::oneshot;
use verbatim_server::config::export::{Export, Mode};
use verbatim_server::config::{Config, Metrics};
use verbatim_server::{Server, ServerOptions};
use verbatim_tests::http::get;
use verbatim_tests::process::{Home, Text, wait_for};

pub struct Served {
    pub metrics: SocketAddr,
    pub home: Home,
    export: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _machine: TempDir,
}

impl Served {
    /// Exports a folder, which the record is given too, from the machine of this name; `more`
    /// is laid over it.
    pub fn on(name: &str, more: &str) -> Self {
        LazyLock::force(&LOG);
        let (export, home) = (tempfile::tempdir().expect("a folder"), Home::new());
        let there = export.path().strip_prefix("/").expect("a whole name");
        let machine = recorded(name, &format!("{more}{}/a = x\n", there.display()));
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: home.state(),
            drain_seconds: 1,
            metrics: Metrics { listen: "127.0.0.1:0".into(), asked_for: true },
            exports: vec![Export::new("data", export.path(), Mode::ReadOnly).expect("an export")],
            ..Config::default()
        };
        let root = Some(machine.path().to_owned());
        let options = ServerOptions { root, ..ServerOptions::default() };
        let (stop, stopped) = oneshot::channel::<()>();
        let (told, ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let server = Server::bind(config, options).await.expect("it listens");
                told.send(server.metrics_address().expect("it shows metrics")).expect("awaited");
                server.run(async { drop(stopped.await) }).await;
            });
        });
        let metrics = ready.recv_timeout(SEEN_MAX).expect("the server starts");
        let (stop, thread) = (Some(stop), Some(thread));
        Self { metrics, home, export, stop, thread, _machine: machine }
    }

    pub fn export(&self) -> &Path {
        self.export.path()
    }

    /// Waits until the status has a finding of this check.
    #[track_caller]
    pub fn finding(&self, check: &str) -> Value {
        let what = format!("the status has a finding of the check {check}");
        wait_for(&what, SEEN_MAX, || {
            let body = get(self.metrics, "/api/v1/status").body;
            let status: Value = serde_json::from_str(&body).unwrap_or_default();
            let mut findings = status["findings"].as_array().into_iter().flatten();
            findings.find(|it| it["check"] == check).cloned().ok_or(Text(body))
        })
    }
}

/// What all servers of this process have logged.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    subscriber.init();
    log
});

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Waits until a line with all of these words is logged.
#[track_caller]
pub fn logged(words: &[&str]) -> String {
    wait_for(&format!("the log has a line with all of {words:?}"), SEEN_MAX, || {
        let log = String::from_utf8_lossy(&LOG.lock()).into_owned();
        let line = log.lines().find(|line| words.iter().all(|it| line.contains(it)));
        line.map(str::to_owned).ok_or(Text(log))
    })
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the server panicked");
    }
}
