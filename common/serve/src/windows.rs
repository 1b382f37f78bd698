//! Windows for reading clients: a range of a file that devices register directly or, where the
//! kernel refuses, a copy in a slot; and packs of many small files in one slot, of which a link
//! without a device sends the longer ones from their files. Jobs make them, with a pin in hand, and
//! never read through a mapping, which truncation would turn into SIGBUS.
//!
//! The memory of a window is free when every device has deregistered it; then its slot is reused,
//! or returned with its loan.

use crate::host::{LeaseRecord, ReadHost};
use crate::open_file::OpenedFile;
use crate::rdma::pin_budget::Pin;
use crate::rdma::registrations::{Offered, SessionDomain};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;
use verbatim_control::Loan;
use verbatim_fabric::{
    FROM_FILE_BYTES_MIN, FabricError, FromFiles, MappedFile, Memory, SharedSlot,
};
use verbatim_files::Source;
use verbatim_proto::message::FileId;
use verbatim_proto::read::Prepared;
use verbatim_proto::units::{GRAIN_BYTES, PACK_BYTES_MAX};
use verbatim_proto::{Code, Digest, Extent, Fault};

/// A slot for packed files, allocated if there is none to reuse, and the loan of its memory.
pub(crate) struct PackSlot {
    pub slot: Option<SharedSlot>,
    pub memory: Loan,
}

/// A registered window.
pub struct Window {
    /// The number of its registration.
    pub(crate) number: u64,
    /// The slot of the packed files, to be reused.
    pub(crate) packed: Option<PackSlot>,
    /// The loan of its memory, if it is a copy of a range that no device could register.
    pub(crate) copied: Option<Loan>,
    /// The client's lease of it.
    pub(crate) lease: LeaseRecord,
}

impl Window {
    /// The same window, of this file alone.
    pub(crate) fn of(mut self, file: Option<FileId>) -> Self {
        self.lease.file = file;
        self
    }
}

/// Makes one window, in a job.
pub(crate) struct WindowMaker<'j, H> {
    pub host: &'j H,
    pub domain: &'j SessionDomain,
    /// The length of this client's windows.
    pub cell: u64,
    /// Whether to bypass the digest cache.
    pub fresh: bool,
}

impl<H: ReadHost> WindowMaker<'_, H> {
    /// Makes a window of a range of one file.
    pub fn map(
        &self,
        (open, extent): &(Option<Arc<OpenedFile>>, Extent),
        pin: Arc<Pin>,
    ) -> (Prepared, Option<Window>) {
        match self.try_map(open.as_deref(), *extent, pin) {
            Ok((offered, copied, digests)) => {
                let bytes = extent.len;
                prepared(offered, None, copied, (bytes, vec![Ok(digests)]))
            }
            Err(fault) => (unprepared(vec![Err(fault)]), None),
        }
    }

    fn try_map(
        &self,
        open: Option<&OpenedFile>,
        extent: Extent,
        pin: Arc<Pin>,
    ) -> Result<(Offered, Option<Loan>, Vec<Digest>), Fault> {
        let Self { host, domain, cell, fresh } = *self;
        let open = open.ok_or_else(|| Fault::new(Code::Protocol, "no such file is open"))?;
        let anew = if fresh { Some(open.reopen(host)?) } else { None };
        let source = anew.as_ref().unwrap_or(&open.source);
        let digests = host.digests(source, extent, cell, fresh)?;
        open.source.hand_out(extent, &digests);
        let fault = |error: FabricError| {
            Fault::new(Code::Limit, format!("cannot register {}: {}", open.path, error.with_hint()))
        };
        let mapped = MappedFile::new(source.file().clone(), extent.offset, extent.len as usize)
            .and_then(|mapped| domain.offer(Memory::File(mapped), pin.clone()));
        let refused = match mapped {
            Ok(offered) => return Ok((offered, None, digests)),
            Err(error @ (FabricError::Device { .. } | FabricError::System { .. })) => error,
            Err(error) => return Err(fault(error)),
        };
        // Old kernels register no read-only mapping, some file systems map nothing, and a file that
        // shrank has nothing to map.
        tracing::debug!(path = %open.path, error = %refused, "window is a copy");
        let what = || format!("a copy of {} bytes of {}", extent.len, open.path);
        let lent = host.lend(extent.len as usize).ok_or_else(|| host.no_memory(&what()))?;
        let copy = copy_window(source, extent)?;
        Ok((domain.offer(Memory::Staged(copy), pin).map_err(fault)?, Some(lent), digests))
    }

    /// Packs many small files into a window: in one slot, except the longer ones, which links
    /// without a device send from the files themselves.
    pub fn pack(
        &self,
        packed: PackSlot,
        pieces: &[(Option<Arc<OpenedFile>>, Extent)],
        pin: Arc<Pin>,
    ) -> (Prepared, Option<Window>) {
        let Self { domain, .. } = *self;
        let has_device = domain.has_device();
        let make = if has_device { SharedSlot::for_device } else { SharedSlot::new };
        let slot = match packed.slot.map_or_else(|| make(PACK_BYTES_MAX as usize), Ok) {
            Ok(slot) => slot,
            Err(error) => {
                let fault = Fault::new(Code::Limit, error.to_string());
                return (unprepared(vec![Err(fault); pieces.len()]), None);
            }
        };
        let mut at = 0;
        let mut answers = Vec::with_capacity(pieces.len());
        let mut from_files = FromFiles::default();
        for (open, extent) in pieces {
            let answer = match open {
                Some(open) if extent.len >= FROM_FILE_BYTES_MIN && !has_device => {
                    self.gather(&slot, at, open, *extent, &mut from_files)
                }
                Some(open) => stage(&slot, at, &open.source, *extent),
                None => Err(Fault::new(Code::Protocol, "no such file is open")),
            };
            at += if answer.is_ok() { extent.len as usize } else { 0 };
            answers.push(answer);
        }
        let memory = match from_files.is_empty() {
            true => Memory::Staged(slot.clone()),
            false => Memory::Gathered(slot.clone(), Arc::new(from_files)),
        };
        match domain.offer(memory, pin) {
            Ok(offered) => {
                let packed = PackSlot { slot: Some(slot), memory: packed.memory };
                prepared(offered, Some(packed), None, (at as u64, answers))
            }
            Err(error) => {
                let fault = Fault::new(Code::Limit, error.to_string());
                (unprepared(vec![Err(fault); pieces.len()]), None)
            }
        }
    }

    /// Adds a whole small file to a window, to be sent from the file. A file that did not match, or
    /// was just written, is sent from the copy that was hashed.
    fn gather(
        &self,
        slot: &SharedSlot,
        at: usize,
        open: &OpenedFile,
        extent: Extent,
        from_files: &mut FromFiles,
    ) -> Result<Vec<Digest>, Fault> {
        if self.fresh {
            return stage(slot, at, &open.reopen(self.host)?, extent);
        }
        let source = &open.source;
        if source.is_racy() {
            return stage(slot, at, source, extent);
        }
        let digests = self.host.digests(source, extent, self.cell, false)?;
        from_files.push(at, extent.len as usize, source.file().clone(), 0);
        Ok(digests)
    }
}

/// The answer for the machine, and the window.
fn prepared(
    offered: Offered,
    packed: Option<PackSlot>,
    copied: Option<Loan>,
    (bytes, pieces): (u64, Vec<Result<Vec<Digest>, Fault>>),
) -> (Prepared, Option<Window>) {
    let Offered { number, region, rails } = offered;
    let lease = LeaseRecord { file: None, bytes, leased: Instant::now() };
    let window = Window { number, packed, copied, lease };
    (Prepared { region: Some(region), rails, pieces }, Some(window))
}

fn unprepared(pieces: Vec<Result<Vec<Digest>, Fault>>) -> Prepared {
    Prepared { region: None, rails: Vec::new(), pieces }
}

/// Reads a range that a device refused to register into a slot, a grain at a time.
fn copy_window(source: &Source, extent: Extent) -> Result<SharedSlot, Fault> {
    let slot = SharedSlot::for_device(extent.len as usize)
        .map_err(|error| Fault::new(Code::Limit, error.to_string()))?;
    for done in (0..extent.len).step_by(GRAIN_BYTES as usize) {
        let len = GRAIN_BYTES.min(extent.len - done) as usize;
        let read = |bytes: &mut [u8]| source.file().read_exact_at(bytes, extent.offset + done);
        slot.fill_with(done as usize, len, read).map_err(|error| source.read_fault(&error))?;
    }
    Ok(slot)
}

/// Reads a whole small file into a slot, and hashes it there.
fn stage(
    slot: &SharedSlot,
    at: usize,
    source: &Source,
    extent: Extent,
) -> Result<Vec<Digest>, Fault> {
    let digests = slot.fill_with(at, extent.len as usize, |bytes| {
        source.file().read_exact_at(bytes, 0)?;
        Ok(vec![Digest::of(bytes)])
    });
    let digests = digests.map_err(|error: std::io::Error| source.read_fault(&error))?;
    source.hand_out(extent, &digests);
    Ok(digests)
}
