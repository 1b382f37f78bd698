//! An open device, and what happens to it: events about ports, queue pairs and
//! the device itself arrive on one descriptor for all links. Whichever link finds
//! it readable takes the events and leaves word for the others here; each looks
//! at a counter whenever it polls, so that none needs a thread of its own.
//!
//! A context lives as long as anything made from it: domains hold it. Domains of
//! many peers may be made on one, so queues are told apart by names that are never
//! used again: a number of the device may be, by the time word of it is heard.

use super::device::{DeviceList, Listed};
use super::ffi::{self, Plain as _};
use super::library::{Library, library};
use crate::error::FabricError;
use crate::ports::{GidInfo, PortState, Reason};
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Events taken at a time, so that a device in distress cannot hold a worker.
const EVENTS_PER_TURN: usize = 64;

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ffi::Context>,
    library: &'static Library,
    name: String,
    limits: DeviceLimits,
    /// Grows with every event that some link should know of.
    happened: AtomicU64,
    /// The name of the next queue.
    next_queue: AtomicU64,
    state: Mutex<State>,
    /// Whether it looks for pages when they are wanted, once it was tried.
    pub(super) on_demand: OnceLock<bool>,
}

/// What a device can do, as far as links need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Requests outstanding on one queue pair.
    pub queue_depth_max: u32,
    /// Completions in one queue.
    pub completions_max: u32,
    /// Reads of a peer served at a time by one queue pair.
    pub reads_served_max: u8,
    /// Reads outstanding on one queue pair.
    pub reads_posted_max: u8,
    /// Bytes of one region.
    pub region_bytes_max: u64,
    /// Regions.
    pub regions_max: u32,
    /// Ports.
    pub ports: u8,
}

/// What is known to be broken.
#[derive(Debug, Default)]
struct State {
    device_failed: bool,
    ports_down: BTreeSet<u8>,
    /// Failed queues and the event that said so; each is removed when it is destroyed.
    queues_failed: BTreeMap<Queued, u32>,
}

/// The name of a queue pair or completion queue of one context, given once. The library keeps
/// it with the queue for us, where a pointer of ours may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Queued(u64);

impl Queued {
    /// As the library keeps it. Nobody follows it.
    pub fn kept(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    fn of(kept: *mut c_void) -> Self {
        Self(kept.addr() as u64)
    }
}

/// What of the device a link depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Footing {
    /// Its port.
    pub port: u8,
    /// Where in the port's table its address is, and which it is.
    pub gid: (u8, [u8; 16]),
    /// Its queue pair and its completion queue.
    pub queues: [Queued; 2],
}

// SAFETY: libibverbs may be called from any thread, and does its own locking per object.
unsafe impl Send for Context {}
// SAFETY: the same; what we add ourselves is behind a lock or atomic.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device by name.
    pub fn open(name: &str) -> Result<Arc<Self>, Reason> {
        let list = DeviceList::new()?;
        let listed = list.iter().find(|listed| listed.name() == name);
        let listed = listed.ok_or_else(|| Reason::NoDriver { device: name.into() })?;
        let unusable =
            |cause: io::Error| Reason::Unusable { device: name.into(), cause: cause.to_string() };
        Self::open_listed(listed).map(Arc::new).map_err(unusable)
    }

    fn open_listed(listed: Listed<'_>) -> io::Result<Self> {
        let library = library().map_err(io::Error::other)?;
        // SAFETY: the device is in a list that is alive.
        let raw = unsafe { (library.ibv_open_device)(listed.raw()) };
        let error = io::Error::last_os_error();
        let raw = NonNull::new(raw).ok_or(error)?;
        // SAFETY: just opened, and nobody else has it.
        unsafe { Self::from_raw(raw, listed.name()) }
    }

    /// Takes over a context that was just opened.
    ///
    /// # Safety
    /// `raw` must be open, and nobody else may use or close it.
    unsafe fn from_raw(raw: NonNull<ffi::Context>, name: String) -> io::Result<Self> {
        let library = library().map_err(io::Error::other)?;
        let limits = DeviceLimits::default();
        let (happened, next_queue) = (AtomicU64::new(0), AtomicU64::new(1));
        let (state, on_demand) = (Mutex::default(), OnceLock::new());
        // From here on dropping it closes the device.
        let mut context =
            Self { raw, library, name, limits, happened, next_queue, state, on_demand };
        let mut attr = ffi::DeviceAttr::zeroed();
        // SAFETY: the context is open, `attr` is ours to be written.
        let code = unsafe { (library.ibv_query_device)(raw.as_ptr(), &raw mut attr) };
        check(code)?;
        context.limits = DeviceLimits::of(&attr);
        let flags = rustix::fs::fcntl_getfl(context.events_fd())?;
        rustix::fs::fcntl_setfl(context.events_fd(), flags | OFlags::NONBLOCK)?;
        Ok(context)
    }

    /// The kernel's name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device can do.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn raw(&self) -> *mut ffi::Context {
        self.raw.as_ptr()
    }

    /// The frequent calls of the device's driver.
    pub(super) fn ops(&self) -> &ffi::ContextOps {
        // SAFETY: the context is open as long as `self` lives, and its driver does not change.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    /// The descriptor that events arrive on.
    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self` lives.
        let fd = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: the descriptor is the context's and open as long as it is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The state of a port.
    pub(super) fn query_port(&self, port: u8) -> io::Result<ffi::PortAttr> {
        let mut attr = ffi::PortAttr::zeroed();
        // SAFETY: the context is open, `attr` is ours to be written.
        let code = unsafe { (self.library.ibv_query_port)(self.raw(), port, &raw mut attr) };
        check(code).map(|()| attr)
    }

    /// Bytes of the packets that a port agreed on, and of the largest it could; none where the
    /// device does not tell.
    pub fn packet_bytes(&self, port: u8) -> Option<(u32, u32)> {
        let attr = self.query_port(port).ok()?;
        Some((packet_bytes_of(attr.active_mtu)?, packet_bytes_of(attr.max_mtu)?))
    }

    /// One address of a port.
    pub(super) fn query_gid(&self, port: u8, index: u8) -> io::Result<[u8; 16]> {
        let mut gid = ffi::Gid::zeroed();
        let index = i32::from(index);
        // SAFETY: the context is open, `gid` is ours to be written.
        let code = unsafe { (self.library.ibv_query_gid)(self.raw(), port, index, &raw mut gid) };
        check(code).map(|()| gid.raw)
    }

    /// A partition key of a port.
    pub(super) fn query_pkey(&self, port: u8, index: u16) -> Result<u16, FabricError> {
        let mut pkey = 0;
        let at = i32::from(index);
        // SAFETY: the context is open, `pkey` is ours to be written.
        let code = unsafe { (self.library.ibv_query_pkey)(self.raw(), port, at, &raw mut pkey) };
        let pkey = check(code).map_or(0, |()| u16::from_be(pkey));
        // Without the bit for the kind of membership, 0 is an empty place.
        if pkey & 0x7fff != 0 {
            return Ok(pkey);
        }
        let what = format!("cannot make a link on {}/{port}", self.name);
        let hint =
            "cat /sys/class/infiniband/DEVICE/ports/PORT/pkeys/* shows them; 0 is the default";
        Err(FabricError::device(what, format!("it has no partition {index}"), hint))
    }

    /// Grows with every event; a link that sees it grow asks for `trouble`.
    pub(super) fn happened(&self) -> u64 {
        self.happened.load(Ordering::Acquire)
    }

    /// Whether nothing can be made on it any more: the device failed, or was taken out.
    pub fn has_failed(&self) -> bool {
        self.take_events();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).device_failed
    }

    /// Takes what events there are and leaves word for every link.
    pub(super) fn take_events(&self) {
        // One at a time: an event must be acknowledged by who took it.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..EVENTS_PER_TURN {
            let mut event = ffi::AsyncEvent::zeroed();
            // SAFETY: the context is open, `event` is ours to be written.
            let code = unsafe { (self.library.ibv_get_async_event)(self.raw(), &raw mut event) };
            if code != 0 {
                return;
            }
            self.note(&mut state, &event);
            // SAFETY: `event` was just taken and is acknowledged once.
            unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        }
    }

    fn note(&self, state: &mut State, event: &ffi::AsyncEvent) {
        tracing::debug!(device = self.name, event = event.event_type, "device event");
        match event.event_type {
            ffi::IBV_EVENT_QP_FATAL | ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => {
                let queue = event.element as *const ffi::Qp;
                // SAFETY: these events carry their queue pair, and destroying that waits until
                // the event is acknowledged, which comes after this.
                let kept = unsafe { (*queue).qp_context };
                state.queues_failed.insert(Queued::of(kept), event.event_type);
            }
            ffi::IBV_EVENT_CQ_ERR => {
                let queue = event.element as *const ffi::Cq;
                // SAFETY: as above, for the completion queue that this event carries.
                let kept = unsafe { (*queue).cq_context };
                state.queues_failed.insert(Queued::of(kept), event.event_type);
            }
            ffi::IBV_EVENT_DEVICE_FATAL => state.device_failed = true,
            ffi::IBV_EVENT_PORT_ERR => {
                state.ports_down.insert(event.element as u8);
            }
            ffi::IBV_EVENT_PORT_ACTIVE => {
                state.ports_down.remove(&(event.element as u8));
            }
            ffi::IBV_EVENT_GID_CHANGE => {}
            _ => return,
        }
        self.happened.fetch_add(1, Ordering::Release);
    }

    /// Why a link cannot go on, if it cannot.
    pub(super) fn trouble(&self, footing: &Footing) -> Option<FabricError> {
        let Footing { port, gid: (index, address), queues } = *footing;
        let failed = |cause: &str, hint: &str| {
            Some(FabricError::device(format!("link on {}/{port}", self.name), cause, hint))
        };
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.device_failed {
            return failed(
                "the device failed",
                "see dmesg; its driver may have to be loaded again",
            );
        }
        if state.ports_down.contains(&port) {
            return failed("the port went down", "check the cable and: ip link set DEV up");
        }
        match queues.iter().find_map(|queue| state.queues_failed.get(queue)) {
            Some(&ffi::IBV_EVENT_QP_ACCESS_ERR) => {
                let hint = "the peer used a key or a range that it was not given";
                return failed("the peer broke an access rule", hint);
            }
            Some(_) => {
                let hint = "the link is made anew; if it happens again see dmesg";
                return failed("the queue pair failed", hint);
            }
            None => drop(state),
        }
        if self.query_gid(port, index).is_ok_and(|now| now == address) {
            return None;
        }
        let hint = "its network device was set up anew; a new link takes the new address";
        failed("the port lost the address of the link", hint)
    }

    /// Looks at a port before a link is made on it: what was heard of it may be old. Tells what
    /// only the device knows, such as its MTU.
    pub(super) fn expect_active(&self, port: u8) -> Result<ffi::PortAttr, FabricError> {
        self.take_events();
        let what = || format!("cannot make a link on {}/{port}", self.name);
        let attr = self
            .query_port(port)
            .map_err(|e| FabricError::device(what(), e.to_string(), "ibv_devinfo lists ports"))?;
        if !PortState(attr.state).is_active() {
            let hint = "check the cable and: ip link set DEV up";
            return Err(FabricError::device(what(), "the port is not ACTIVE", hint));
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ports_down.remove(&port);
        Ok(attr)
    }

    /// The same of an address: another may have taken its place in the table, and peers would not
    /// find what is made there.
    pub(super) fn expect_address(&self, port: u8, gid: &GidInfo) -> Result<(), FabricError> {
        if self.query_gid(port, gid.index).is_ok_and(|now| now == gid.raw) {
            return Ok(());
        }
        let what = format!("cannot make a link on {}/{port}", self.name);
        let hint = "give its network device the address again, or another that is routed";
        Err(FabricError::device(what, format!("the port lost the address {}", gid.ip()), hint))
    }

    /// Names a queue that is about to be made.
    pub(super) fn name_queue(&self) -> Queued {
        Queued(self.next_queue.fetch_add(1, Ordering::Relaxed))
    }

    /// Forgets queues that are gone.
    pub(super) fn forget(&self, queues: [Queued; 2]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queues_failed.retain(|queue, _| !queues.contains(queue));
    }
}

/// The library counts sizes of packets from 1, 256 bytes, to 5, 4,096.
fn packet_bytes_of(mtu: u32) -> Option<u32> {
    (1..=5).contains(&mtu).then(|| 128 << mtu)
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made from the context held it, so nothing is left. A refusal
        // leaves a descriptor open, which is all that can be done.
        let _ = unsafe { (self.library.ibv_close_device)(self.raw()) };
    }
}

impl DeviceLimits {
    fn of(attr: &ffi::DeviceAttr) -> Self {
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        let small = |value: i32| u8::try_from(value.clamp(0, i32::from(u8::MAX))).unwrap_or(0);
        Self {
            queue_depth_max: positive(attr.max_qp_wr),
            completions_max: positive(attr.max_cqe),
            reads_served_max: small(attr.max_qp_rd_atom),
            reads_posted_max: small(attr.max_qp_init_rd_atom),
            region_bytes_max: attr.max_mr_size,
            regions_max: positive(attr.max_mr),
            ports: attr.phys_port_cnt,
        }
    }
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self::of(&ffi::DeviceAttr::zeroed())
    }
}

/// Most calls return an errno; some minus one and set it.
pub(super) fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
