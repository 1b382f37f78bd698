//! The status of a server as JSON: `/api/v1/status`. `docs/metrics.md` documents the fields;
//! fields are added, never changed. Read-only, and without secrets: no tokens, keys or contents,
//! and nothing of hidden exports. It does name other files and clients.

use super::history::STEP_SECONDS;
use crate::config::export::Mode;
use crate::exports::digest_cache::CacheHome;
use crate::exports::open::ExportFolder;
use crate::observe::counters::{RecentError, lock, seconds};
use crate::observe::server_stats::{ServerInfo, ServerStats, StatusSources};
use crate::observe::session_stats::{FileProgress, SessionStats};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;
use verbatim_doctor::Finding;
use verbatim_telemetry::labels::Direction;

/// The whole answer of `/api/v1/status`.
#[derive(Serialize)]
pub struct Status {
    version: &'static str,
    state: &'static str,
    reason: Option<String>,
    address: Option<String>,
    fingerprint: String,
    now: f64,
    started: f64,
    rdma: Rdma,
    exports: Vec<Export>,
    sessions: Vec<Session>,
    throughput: Throughput,
    devices: Vec<Device>,
    findings: Vec<FindingStatus>,
    memory: Memory,
    cache: Cache,
    errors: Vec<Error>,
}

#[derive(Serialize)]
struct Rdma {
    offered: bool,
    reason: Option<String>,
    hint: Option<String>,
}

#[derive(Serialize)]
struct Export {
    name: String,
    mode: &'static str,
    free_bytes: Option<u64>,
    size_bytes: Option<u64>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Session {
    id: u64,
    request: String,
    peer: String,
    who: String,
    agent: String,
    seconds: f64,
    transport: Option<&'static str>,
    read_bytes: u64,
    written_bytes: u64,
    spared_bytes: u64,
    memory_bytes: u64,
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    path: String,
    direction: &'static str,
    bytes: u64,
    done_bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Throughput {
    step_seconds: u64,
    verbs: Rates,
    tcp: Rates,
}

#[derive(Serialize)]
struct Rates {
    read: Vec<u64>,
    write: Vec<u64>,
}

#[derive(Serialize)]
struct Device {
    device: String,
    port: u8,
    state: &'static str,
    active: bool,
    link_layer: &'static str,
    bytes_per_second: f64,
    received_bytes: Option<u64>,
    sent_bytes: Option<u64>,
    errors: u64,
    finding: Option<String>,
    hint: Option<&'static str>,
}

#[derive(Serialize)]
struct FindingStatus {
    check: &'static str,
    severity: &'static str,
    about: String,
    is: String,
    should: String,
    why: String,
    fix: String,
}

#[derive(Serialize)]
struct Memory {
    regions: u64,
    pinned_bytes: u64,
    pinned_bytes_max: u64,
    slots: u64,
    huge_page_bytes: u64,
    client_bytes: u64,
    client_bytes_max: u64,
}

#[derive(Serialize)]
struct Cache {
    kept_in: &'static str,
    hits: u64,
    misses: u64,
    entries: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Error {
    time: f64,
    text: String,
    hint: Option<String>,
    peer: Option<String>,
    session: Option<u64>,
}

impl ServerStats {
    /// The status at this moment.
    pub(super) fn status(&self, watched: &StatusSources) -> Status {
        let levels = self.levels(watched);
        let reason = self.not_ready_reason();
        let about = lock(&self.about).clone();
        let state = match &reason {
            None => "serving",
            Some(reason) if reason == "draining" => "draining",
            Some(_) => "not ready",
        };
        Status {
            version: env!("CARGO_PKG_VERSION"),
            state,
            reason,
            address: about.address.map(|address| address.to_string()),
            fingerprint: about.fingerprint.clone(),
            now: seconds(SystemTime::now()),
            started: levels.start_time,
            rdma: rdma(about),
            exports: self.exports(watched),
            sessions: self.views().iter().map(|view| session(view)).collect(),
            throughput: self.throughput(),
            devices: self.devices(),
            findings: lock(&self.findings).iter().map(found).collect(),
            memory: Memory {
                regions: levels.regions,
                pinned_bytes: levels.pinned_bytes,
                pinned_bytes_max: levels.pinned_bytes_max,
                slots: levels.slots,
                huge_page_bytes: verbatim_fabric::memory::huge_page_bytes(),
                client_bytes: levels.client_bytes,
                client_bytes_max: levels.client_bytes_max,
            },
            cache: Cache {
                kept_in: match watched.digests.cache().home() {
                    CacheHome::File => "file",
                    CacheHome::Memory => "memory",
                    CacheHome::Nowhere => "nowhere",
                },
                hits: levels.cache_lookups.0,
                misses: levels.cache_lookups.1,
                entries: levels.cache_entries,
                bytes: levels.cache_bytes,
            },
            errors: lock(&self.counters.recent_errors).iter().map(error).collect(),
        }
    }

    fn exports(&self, watched: &StatusSources) -> Vec<Export> {
        let health = lock(&self.health);
        let export = |(name, export): (&Vec<u8>, &std::sync::Arc<ExportFolder>)| {
            let name = String::from_utf8_lossy(name).into_owned();
            let levels = health.exports.iter().find(|levels| levels.name == name);
            let failed = health.failed.iter().find(|(failed, _)| *failed == name);
            Export {
                mode: match export.mode {
                    Mode::ReadOnly => "ro",
                    Mode::ReadWrite => "rw",
                },
                free_bytes: levels.map(|levels| levels.free_bytes),
                size_bytes: levels.map(|levels| levels.size_bytes),
                error: failed.map(|(_, why)| why.clone()),
                name,
            }
        };
        // The page needs no authentication, so hidden exports are left out.
        let shown = watched.exports.iter().filter(|(_, export)| !export.acl.hidden);
        shown.map(export).collect()
    }

    fn throughput(&self) -> Throughput {
        let history = lock(&self.history);
        let rates = |transport| Rates {
            read: history.rates(transport, 0),
            write: history.rates(transport, 1),
        };
        Throughput { step_seconds: STEP_SECONDS, verbs: rates(0), tcp: rates(1) }
    }

    fn devices(&self) -> Vec<Device> {
        let health = lock(&self.health);
        let device = |port: &verbatim_doctor::counters::Port| {
            let (finding, hint) = port.finding().unzip();
            Device {
                device: port.levels.device.clone(),
                port: port.levels.port,
                state: port.state,
                active: port.levels.active,
                link_layer: port.link_layer,
                bytes_per_second: port.levels.bytes_per_second,
                received_bytes: port.levels.bytes.map(|(received, _)| received),
                sent_bytes: port.levels.bytes.map(|(_, sent)| sent),
                errors: port.levels.errors.iter().map(|(_, count)| count).sum(),
                finding,
                hint,
            }
        };
        health.ports.iter().map(device).collect()
    }
}

fn rdma(about: ServerInfo) -> Rdma {
    let missing = about.no_rdma;
    Rdma {
        offered: missing.is_none(),
        hint: missing.as_ref().and_then(|missing| missing.hint.clone()),
        reason: missing.map(|missing| missing.text),
    }
}

fn session(view: &SessionStats) -> Session {
    let mut files: Vec<_> = lock(&view.files).iter().map(|((way, _), of)| file(*way, of)).collect();
    files.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Session {
        id: view.id,
        request: view.request.clone(),
        peer: view.peer.to_string(),
        who: view.who.clone(),
        agent: view.agent.clone(),
        seconds: view.began.elapsed().as_secs_f64(),
        transport: view.transport().map(|transport| transport.word()),
        read_bytes: view.moved[Direction::Read as usize].load(Relaxed),
        written_bytes: view.moved[Direction::Write as usize].load(Relaxed),
        spared_bytes: view.spared.load(Relaxed),
        memory_bytes: view.memory_bytes(),
        files,
    }
}

fn file(direction: Direction, progress: &FileProgress) -> File {
    File {
        path: progress.path.clone(),
        direction: direction.word(),
        bytes: progress.bytes,
        done_bytes: progress.done_bytes.min(progress.bytes),
        seconds: progress.began.elapsed().as_secs_f64(),
    }
}

fn found(finding: &Finding) -> FindingStatus {
    FindingStatus {
        check: finding.check,
        severity: finding.severity.word(),
        about: finding.about.clone(),
        is: finding.is.clone(),
        should: finding.should.clone(),
        why: finding.why.clone(),
        fix: finding.fix.to_string(),
    }
}

fn error(trouble: &RecentError) -> Error {
    Error {
        time: seconds(trouble.at),
        text: trouble.text.clone(),
        hint: trouble.hint.clone(),
        peer: trouble.peer.map(|peer| peer.to_string()),
        session: trouble.session,
    }
}
