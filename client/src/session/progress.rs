//! What a session has to tell of itself: how far it is, for how long the server
//! has owed an answer, and the books that go from one session to the next. Reads
//! what the others keep; decides nothing.

use crate::engine::ledger::Ledger;
use crate::model::report::{Progress, Quiet, Summary};
use crate::session::dispatch::Core;
use std::sync::atomic::Ordering;
use verbatim_fabric::memory::huge_page_bytes_peak;

impl Core {
    pub(crate) fn progress_now(&self) -> Progress {
        Progress {
            bytes: self.progress.bytes + self.stats.bytes.load(Ordering::Relaxed),
            searching: !self.trees.is_found() || self.is_streaming() || self.is_comparing(),
            links: self.links.up_count(),
            elapsed: self.now(),
            hashing_holes: self.is_hashing_holes() || self.write.awaits_holes(),
            quiet: self.quiet(),
            ..self.progress.clone()
        }
    }

    fn is_comparing(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.is_searching())
    }

    /// Bytes that this session moved.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.stats.bytes.load(Ordering::Relaxed) - self.found_bytes
    }

    /// How long the server has owed us an answer.
    fn quiet(&self) -> Option<Quiet> {
        let awaits = !self.read.is_idle() || !self.write.is_idle() || self.trees.awaits();
        let awaits = awaits || self.mirror.as_ref().is_some_and(|mirror| mirror.awaits());
        let so_far = self.moment.saturating_duration_since(self.quiet_since);
        let quiet = Quiet { so_far, at_most: self.options.timeout };
        // What this side is still hashing is no answer of the server's.
        (awaits && self.hashing == 0 && !self.is_hashing_holes()).then_some(quiet)
    }

    /// Whether this side hashes zeros of holes, which takes as long as hashing data.
    fn is_hashing_holes(&self) -> bool {
        self.read.is_hashing_holes() || self.write.is_hashing_holes()
    }

    /// The server hashed so much of a partial file again.
    pub(crate) fn rehashed(&mut self, bytes: u64) {
        let sum = &mut self.ledger.summary.rehashed_bytes;
        *sum = sum.saturating_add(bytes);
    }

    /// Begins where earlier sessions of the copy ended.
    pub(crate) fn take_up(&mut self, ledger: Ledger) {
        let Summary { files, bytes, .. } = ledger.summary;
        self.progress = Progress {
            files,
            files_known: files,
            bytes,
            bytes_known: bytes,
            ..Progress::default()
        };
        self.ledger = ledger;
        self.look_at_clock();
    }

    /// The books, with what this session adds to them.
    pub(crate) fn hand_over(&mut self) -> Ledger {
        let mut ledger = std::mem::replace(&mut self.ledger, Ledger::new(&self.peer));
        let summary = &mut ledger.summary;
        if let Some(transport) = self.links.transport.clone() {
            summary.reason = self.carrier.reason().map(str::to_owned);
            summary.transport = transport;
        }
        summary.ports = self.carrier.ports();
        summary.request.clone_from(&self.request);
        let posted = self.carrier.posted();
        summary.rdma.reads += posted.reads;
        summary.rdma.writes += posted.writes;
        summary.huge_page_bytes = huge_page_bytes_peak();
        summary.in_place_bytes += self.write.in_place_bytes();
        summary.rdma.reads_done += posted.reads_done;
        summary.rdma.writes_done += posted.writes_done;
        summary.moved_bytes += self.stats.moved.load(Ordering::Relaxed);
        summary.rehashed_bytes += self.stats.rehashed.load(Ordering::Relaxed);
        summary.hole_bytes += self.stats.holes.load(Ordering::Relaxed);
        summary.limited_by = self.stats.limit();
        summary.mismatches += self.read.mismatches() + self.write.mismatches();
        summary.links_lost += self.links.lost;
        ledger
    }
}
