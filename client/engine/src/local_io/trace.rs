//! A timeline of a copy's chunks for chrome://tracing and ui.perfetto.dev: when each was in flight,
//! and when it was hashed and stored. Workers append events as they end, so the trace occupies no
//! memory, and a killed copy leaves a usable one: readers accept a list without its end. If the
//! file cannot be written, the trace ends and the copy continues.

use serde_json::json;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Buffered before it is written, so that a chunk seldom waits for the file.
const BUFFER_BYTES: usize = 256 << 10;

/// A trace file that is being written. Event names are constants and need no escaping.
#[derive(Debug)]
pub struct Trace {
    begin: Instant,
    out: Mutex<BufWriter<File>>,
    next: AtomicU64,
    failed: AtomicBool,
}

impl Trace {
    /// Creates or replaces a trace file.
    pub fn create(path: &Path) -> io::Result<Arc<Self>> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
        out.write_all(b"[\n")?;
        Ok(Arc::new(Self {
            begin: Instant::now(),
            out: Mutex::new(out),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }))
    }

    /// Records that a chunk was in flight on a link until now; such spans may overlap. Formats text
    /// directly, because this runs on the thread that verifies.
    pub(crate) fn moved(&self, what: &str, link: u16, since: Instant, bytes: u64) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (begin, end) = (self.micros(since), self.micros(Instant::now()));
        let event = |phase: &str, at: f64| {
            format!(
                "{{\"name\":\"{what}\",\"cat\":\"link\",\"ph\":\"{phase}\",\"id\":{id},\"pid\":1,\
                 \"tid\":{link},\"ts\":{at:.3},\"args\":{{\"bytes\":{bytes},\"link\":{link}}}}},\n"
            )
        };
        self.write(&[event("b", begin), event("e", end)].concat());
    }

    /// Records that the thread of a link was busy with this until now.
    pub(crate) fn worked(&self, what: &str, link: u16, since: Instant, bytes: u64) {
        let (begin, end) = (self.micros(since), self.micros(Instant::now()));
        let time = end - begin;
        self.write(&format!(
            "{{\"name\":\"{what}\",\"cat\":\"worker\",\"ph\":\"X\",\"pid\":1,\"tid\":{link},\
             \"ts\":{begin:.3},\"dur\":{time:.3},\"args\":{{\"bytes\":{bytes}}}}},\n"
        ));
    }

    /// Writes the process name and ends the list.
    pub fn finish(&self) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let name = json!({ "name": "process_name", "ph": "M", "pid": 1,
                           "args": { "name": "rdma-cp" } });
        writeln!(out, "{name}\n]")?;
        out.flush()?;
        match self.failed.load(Ordering::Relaxed) {
            true => Err(io::Error::other("it could not be written in full")),
            false => Ok(()),
        }
    }

    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begin).as_nanos() as f64 / 1e3
    }

    fn write(&self, events: &str) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if out.write_all(events.as_bytes()).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_trace_lists_events_in_the_order_of_their_ends() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("trace.json");
        let trace = Trace::create(&path).expect("a file");
        let since = Instant::now();
        trace.moved("read", 3, since, 1 << 20);
        trace.worked("verify and store", 3, since, 1 << 20);
        trace.finish().expect("it is written");
        let text = std::fs::read_to_string(&path).expect("the file");
        let events: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        let phases: Vec<_> = events.iter().map(|event| event["ph"].as_str()).collect();
        assert_eq!(phases, [Some("b"), Some("e"), Some("X"), Some("M")]);
        assert_eq!((&events[0]["id"], &events[0]["tid"]), (&events[1]["id"], &json!(3)));
        assert!(events[1]["ts"].as_f64() >= events[0]["ts"].as_f64());
    }
}
