//! One queue pair with its own completion queue and channel: posting, polling,
//! arming, and taking it all apart in the right order. It knows numbers of work
//! requests, not what they are for; `link` does.
//!
//! Taking apart: the queue pair first, because only its end guarantees that the
//! device uses no memory of its requests and serves no request of the peer; then
//! the completion queue, the channel, and at last what they were made from.

use super::context::{Queued, check};
use super::ffi::{self, Plain as _};
use super::region::{Pd, count_leaks};
use crate::error::FabricError;
use rustix::event::epoll;
use rustix::fs::OFlags;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Completions taken off the queue in one call.
pub(super) const POLL_BATCH: usize = 32;

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    pub sends: u32,
    pub receives: u32,
    pub inline_bytes: u32,
}

/// A queue pair, its completion queue and its channel.
#[derive(Debug)]
pub(super) struct Queue {
    /// Gone once it was destroyed.
    pair: Option<NonNull<ffi::Qp>>,
    completions: CompletionQueue,
    pd: Arc<Pd>,
    pub depths: Depths,
    number: u32,
    name: Queued,
}

// SAFETY: libibverbs may be called from any thread; one owner at a time posts and polls.
unsafe impl Send for Queue {}

/// Why some of a chain was not posted.
#[derive(Debug)]
pub(super) struct PostError {
    /// How many of its requests were.
    pub posted: usize,
    pub cause: io::Error,
}

impl Queue {
    /// Makes a queue pair in a domain; it has no state yet.
    pub fn new(pd: &Arc<Pd>, wanted: Depths) -> Result<Self, FabricError> {
        let limits = pd.context().limits();
        let sends = wanted.sends.min(limits.queue_depth_max);
        let receives = wanted.receives.min(limits.queue_depth_max);
        // Room for a failure of every request: an overrun queue would lose completions.
        let room = sends + receives + POLL_BATCH as u32;
        let completions = CompletionQueue::new(pd, room.min(limits.completions_max))?;
        let name = pd.context().name_queue();
        let make = |inline_bytes: u32| {
            let mut init = ffi::QpInitAttr::zeroed();
            init.qp_context = name.kept();
            init.send_cq = completions.queue.as_ptr();
            init.recv_cq = completions.queue.as_ptr();
            init.qp_type = ffi::IBV_QPT_RC;
            init.cap.max_send_wr = sends;
            init.cap.max_recv_wr = receives;
            init.cap.max_send_sge = 1;
            init.cap.max_recv_sge = 1;
            init.cap.max_inline_data = inline_bytes;
            let library = pd.context().library();
            // SAFETY: domain and completion queue are alive, `init` is ours.
            let pair = unsafe { (library.ibv_create_qp)(pd.raw(), &raw mut init) };
            let error = io::Error::last_os_error();
            NonNull::new(pair).map(|pair| (pair, init.cap)).ok_or(error)
        };
        // Not every device sends bytes within the request.
        let made = make(wanted.inline_bytes).or_else(|_| make(0));
        let (pair, cap) = made.map_err(|e| refused(pd, "cannot make a queue pair", &e))?;
        let inline_bytes = cap.max_inline_data.min(wanted.inline_bytes);
        let depths = Depths { sends, receives, inline_bytes };
        // SAFETY: just made.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        Ok(Self { pair: Some(pair), completions, pd: pd.clone(), depths, number, name })
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The names by which the device speaks of it.
    pub fn names(&self) -> [Queued; 2] {
        [self.name, self.completions.name]
    }

    /// Becomes readable when a completion or an event of the device is there.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.completions.wake.as_fd()
    }

    /// Changes the state of the queue pair.
    pub fn modify(&self, attr: &mut ffi::QpAttr, mask: c_int) -> io::Result<()> {
        let pair = self.pair.ok_or_else(gone)?;
        // SAFETY: the queue pair is alive, `attr` is ours.
        check(unsafe { (self.pd.context().library().ibv_modify_qp)(pair.as_ptr(), attr, mask) })
    }

    /// Posts requests with one call.
    ///
    /// # Safety
    /// The memory that the requests name must stay as registered, and untouched by others, until
    /// the completion of each was polled or `destroy` succeeded.
    pub unsafe fn post_sends(&mut self, chain: &mut [ffi::SendWr]) -> Result<(), PostError> {
        for at in 1..chain.len() {
            let next = &raw mut chain[at];
            chain[at - 1].next = next;
        }
        let none = |cause| PostError { posted: 0, cause };
        let pair = self.pair.ok_or_else(|| none(gone()))?;
        let post = self.pd.context().ops().post_send.ok_or_else(|| none(gone()))?;
        let (first, mut bad) = (chain.as_mut_ptr(), null_mut());
        // SAFETY: the queue pair is alive, the chain ends with a null, the caller vouches for
        // the memory.
        let code = unsafe { post(pair.as_ptr(), first, &raw mut bad) };
        check(code).map_err(|cause| {
            // A driver that does not say which one it refused may have taken all of them.
            let refused = chain.iter().position(|wr| std::ptr::eq(wr, bad));
            let posted = refused.unwrap_or(chain.len());
            PostError { posted, cause }
        })
    }

    /// Posts receives without memory: each takes one immediate.
    pub fn post_receives(&mut self, count: usize, wr_id: u64) -> io::Result<()> {
        let mut chain = vec![ffi::RecvWr::zeroed(); count];
        for at in 0..count {
            chain[at].wr_id = wr_id;
            if at > 0 {
                let next = &raw mut chain[at];
                chain[at - 1].next = next;
            }
        }
        let pair = self.pair.ok_or_else(gone)?;
        let post = self.pd.context().ops().post_recv.ok_or_else(gone)?;
        let mut bad = null_mut();
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the queue pair is alive, the chain ends with a null and names no memory.
        check(unsafe { post(pair.as_ptr(), chain.as_mut_ptr(), &raw mut bad) })
    }

    /// Takes completions off the queue; how many there were.
    pub fn poll(&mut self, into: &mut [ffi::Wc; POLL_BATCH]) -> io::Result<usize> {
        let poll = self.pd.context().ops().poll_cq.ok_or_else(gone)?;
        let queue = self.completions.queue.as_ptr();
        // SAFETY: the queue is alive, and `into` has room for a batch.
        let count = unsafe { poll(queue, POLL_BATCH as c_int, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| io::Error::other("the completion queue failed"))
    }

    /// Asks for an event with the next completion. Poll once more after it: a completion that
    /// came before it makes no event.
    pub fn arm(&mut self) -> io::Result<()> {
        let arm = self.pd.context().ops().req_notify_cq.ok_or_else(gone)?;
        // SAFETY: the queue is alive.
        check(unsafe { arm(self.completions.queue.as_ptr(), 0) })
    }

    /// Takes the events of the channel; whether there were any.
    pub fn take_wakes(&mut self) -> bool {
        self.completions.take_events()
    }

    /// Ends the queue pair. True when from now on the device uses no memory of its requests.
    pub fn destroy(&mut self) -> bool {
        let Some(pair) = self.pair.take() else { return true };
        let context = self.pd.context();
        // An event of it that nobody took would be lost with it; one that was taken is
        // acknowledged by who took it.
        context.take_events();
        // SAFETY: the queue pair is ours and destroyed once.
        let code = unsafe { (context.library().ibv_destroy_qp)(pair.as_ptr()) };
        context.forget(self.names());
        if code != 0 {
            // It holds its domain and queues, so they must stay for good.
            std::mem::forget(self.pd.clone());
            count_leaks(1);
        }
        code == 0
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A completion queue and its channel.
#[derive(Debug)]
struct CompletionQueue {
    queue: NonNull<ffi::Cq>,
    name: Queued,
    channel: Channel,
    /// Readable when the channel or the device is.
    wake: OwnedFd,
}

impl CompletionQueue {
    fn new(pd: &Arc<Pd>, room: u32) -> Result<Self, FabricError> {
        let channel = Channel::new(pd)?;
        let cause = |e: rustix::io::Errno| refused(pd, "cannot wait for completions", &e.into());
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cause)?;
        let (readable, none) = (epoll::EventFlags::IN, epoll::EventData::new_u64(0));
        epoll::add(&wake, channel.fd(), none, readable).map_err(cause)?;
        epoll::add(&wake, pd.context().events_fd(), none, readable).map_err(cause)?;
        let context = pd.context();
        let name = context.name_queue();
        let (room, kept, to) = (room as c_int, name.kept(), channel.raw.as_ptr());
        // SAFETY: context and channel are alive.
        let queue = unsafe { (context.library().ibv_create_cq)(context.raw(), room, kept, to, 0) };
        let error = io::Error::last_os_error();
        let queue = NonNull::new(queue)
            .ok_or_else(|| refused(pd, "cannot make a completion queue", &error))?;
        Ok(Self { queue, name, channel, wake })
    }

    fn take_events(&mut self) -> bool {
        let library = self.channel.pd.context().library();
        let mut taken = 0;
        loop {
            let (mut queue, mut unused) = (null_mut(), null_mut());
            // SAFETY: the channel is alive, and only this queue is on it.
            let code = unsafe {
                (library.ibv_get_cq_event)(
                    self.channel.raw.as_ptr(),
                    &raw mut queue,
                    &raw mut unused,
                )
            };
            if code != 0 {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: that many events of this queue were just taken.
            unsafe { (library.ibv_ack_cq_events)(self.queue.as_ptr(), taken) };
        }
        taken > 0
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.take_events();
        // SAFETY: the queue is ours and destroyed once. It is refused while a queue pair uses
        // it, which is counted where that one could not be destroyed.
        let _ =
            unsafe { (self.channel.pd.context().library().ibv_destroy_cq)(self.queue.as_ptr()) };
    }
}

/// Where events of a completion queue arrive.
#[derive(Debug)]
struct Channel {
    raw: NonNull<ffi::CompChannel>,
    pd: Arc<Pd>,
}

impl Channel {
    fn new(pd: &Arc<Pd>) -> Result<Self, FabricError> {
        // SAFETY: the context is open.
        let raw = unsafe { (pd.context().library().ibv_create_comp_channel)(pd.context().raw()) };
        let error = io::Error::last_os_error();
        let raw = NonNull::new(raw)
            .ok_or_else(|| refused(pd, "cannot make a completion channel", &error))?;
        let channel = Self { raw, pd: pd.clone() };
        let cause = |e: rustix::io::Errno| refused(pd, "cannot wait for completions", &e.into());
        let flags = rustix::fs::fcntl_getfl(channel.fd()).map_err(cause)?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | OFlags::NONBLOCK).map_err(cause)?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive as long as `self`.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is the channel's and open as long as it is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is ours and destroyed once, after its queue; it is refused where
        // that could not be.
        let _ =
            unsafe { (self.pd.context().library().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

fn gone() -> io::Error {
    io::Error::other("the queue pair is gone")
}

fn refused(pd: &Pd, what: &str, error: &io::Error) -> FabricError {
    let what = format!("{what} on {}", pd.context().name());
    let cause = error.to_string();
    let cause = cause.split(" (os error").next().unwrap_or(&cause).to_owned();
    FabricError::device(what, cause, "end other users of the device, or ask for fewer links")
}
