//! FUSE: implements `fuser::Filesystem` by calls of `Tree` and `Content`. A request
//! that may wait runs on its own task, so that it does not block other requests. Bytes
//! in the cache are answered at once. Every request gets a reply: the kernel turns a
//! dropped reply into EIO, and every wait has a deadline.

use super::cache::CacheFile;
use super::fill::FillProgress;
use super::fuse_types::{errno, file_attr, is_shown_xattr, reply_xattr};
use super::handles::{Handles, OpenFile};
use super::nodes::ROOT;
use super::readdir::{self, DirReply, ReplyContext};
use super::status::STATUS_XATTR;
use super::tree::{Tree, TreeError};
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use verbatim_client::remote_fs::attributes::Kind;

/// The most requests that the kernel may send without a process waiting for them.
const BACKGROUND_MAX: u16 = 64;

/// The kernel's read-ahead, and the largest read that it sends.
pub(super) const KERNEL_READAHEAD_BYTES: u32 = 1 << 20;

/// The FUSE minor version of Linux 5.10: kernels since 5.5 reject invalid attributes.
const VALIDATES_ATTRS_SINCE: u32 = 32;

thread_local! {
    /// The buffer for replies of this thread. It grows to the largest read and is reused.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system that fuser serves.
pub(super) struct FuseFs {
    pub tree: Arc<Tree>,
    pub handles: Arc<Handles>,
    pub fill_progress: Arc<FillProgress>,
    pub runtime: Handle,
    pub owner: (u32, u32),
    /// Whether this kernel rejects invalid attributes; INIT negotiates it.
    pub validates_attrs: bool,
}

impl FuseFs {
    /// Answers a request on its own task.
    fn spawn(&self, answer: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(answer);
    }

    /// Replies with the entries of an open folder from an offset on.
    fn list(&self, handle: FileHandle, from: u64, reply: impl DirReply) {
        let Some(folder) = self.handles.folder(handle.0) else { return reply.fail(Errno::EBADF) };
        let context = ReplyContext { mounter: self.owner, validates_attrs: self.validates_attrs };
        self.spawn(readdir::reply_listing(self.tree.clone(), folder, from, context, reply));
    }
}

impl Filesystem for FuseFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each flag helps where the kernel supports it; none is required.
        for flag in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        if let Err(most) = config.set_max_readahead(KERNEL_READAHEAD_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        self.validates_attrs = config.kernel_abi().1 >= VALIDATES_ATTRS_SINCE;
        let passes = self.tree.passthrough.is_wanted()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.tree.passthrough.set_kernel_support(passes);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (tree, owner, name) = (self.tree.clone(), self.owner, name.as_bytes().to_vec());
        self.spawn(async move {
            match tree.look_up(parent.0, &name).await {
                Ok((number, facts)) => {
                    let ttl = tree.ttl();
                    // A FUSE entry has one number for the node and for st_ino. If these differ,
                    // attributes that expire at once make the kernel ask for st_ino by GETATTR.
                    let same = tree.nodes().shown_ino(number) == number;
                    let believed = if same { ttl } else { Duration::ZERO };
                    let attr = file_attr(number, facts, owner);
                    reply.entry_with_ttls(&believed, &ttl, &attr, Generation(0));
                }
                Err(trouble) => reply.error(errno(&trouble)),
            }
        });
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.tree.nodes().forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (tree, owner) = (self.tree.clone(), self.owner);
        let ttl = tree.ttl();
        let (facts, ino) = {
            let nodes = tree.nodes();
            (nodes.facts(number.0), nodes.shown_ino(number.0))
        };
        let answer = move |facts| match facts {
            Some(facts) => reply.attr(&ttl, &file_attr(ino, facts, owner)),
            None => reply.error(Errno::ESTALE),
        };
        // The kernel does not look up the name of a working directory or of an open folder.
        if facts.is_some_and(|facts| facts.kind == Kind::Folder) {
            return self.spawn(async move { answer(tree.folder_facts(number.0).await) });
        }
        answer(facts);
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let tree = self.tree.clone();
        self.spawn(async move {
            match tree.read_link(number.0).await {
                Ok(target) => reply.data(&target),
                Err(trouble) => reply.error(errno(&trouble)),
            }
        });
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let (tree, handles) = (self.tree.clone(), self.handles.clone());
        self.spawn(async move {
            let (path, file) = match tree.open(number.0).await {
                Ok(opened) => opened,
                Err(trouble) => return reply.error(errno(&trouble)),
            };
            let pinned = tree.passthrough.is_usable() && tree.pin(&file).await;
            let open_backing = |file: &CacheFile| {
                let backed = pinned.then(|| reply.open_backing(file.data()))?;
                tree.passthrough.record_result(backed)
            };
            let (handle, backing) = handles.open(number.0, path, (file, pinned), open_backing);
            tree.content.counters.add_open(backing.is_some());
            let (handle, flags) = (FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
            match backing {
                Some(backing) => reply.opened_passthrough(handle, FopenFlags::empty(), &backing),
                None => reply.opened(handle, flags),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = self.handles.file(handle.0) else { return reply.error(Errno::EBADF) };
        let len = open.file.size.saturating_sub(offset).min(u64::from(size));
        if len == 0 {
            return reply.data(&[]);
        }
        let tree = self.tree.clone();
        let _context = self.runtime.enter();
        tree.read_ahead(&open, offset, len);
        if let Some(bytes) = tree.content.recent_bytes(&open.file, offset, len as usize) {
            tree.content.counters.add_read(len);
            return reply.data(bytes.as_slice());
        }
        let unread = READ_BUFFER.with_borrow_mut(|answer| {
            if answer.len() < len as usize {
                answer.resize(len as usize, 0);
            }
            let bytes = &mut answer[..len as usize];
            // Recently received bytes may be in several fetches.
            if tree.content.copy_recent(&open.file, offset, bytes)
                || matches!(open.file.read_into(offset, bytes), Some(Ok(())))
            {
                reply.data(bytes);
                return None;
            }
            Some(reply)
        });
        let Some(reply) = unread else { return tree.content.counters.add_read(len) };
        self.spawn(read(tree, open, offset, len, reply));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(open) = self.handles.close(handle.0) {
            self.tree.content.cache.touch(&open.file);
            self.tree.content.recent_blocks.release_closed(&open.file);
        }
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let path = self.tree.nodes().path(number.0);
        match path {
            Ok(path) => {
                let handle = self.handles.open_folder(number.0, path);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(_) => reply.error(Errno::ESTALE),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.list(handle, offset, reply);
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list(handle, offset, reply);
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.close_folder(handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // The size of the source is unknown, so statfs reports the cache.
        let (used, most, _) = self.tree.content.cache.usage();
        let (blocks, free) = (most / 4096, most.saturating_sub(used) / 4096);
        let nodes = self.tree.nodes().len() as u64;
        reply.statfs(blocks, free, 0, nodes, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if number.0 == ROOT && name == STATUS_XATTR {
            let status = self.tree.status(&self.fill_progress).to_string();
            return reply_xattr(status.as_bytes(), size, reply);
        }
        let (tree, name) = (self.tree.clone(), name.as_bytes().to_vec());
        if !is_shown_xattr(&name) {
            return reply.error(Errno::ENODATA);
        }
        self.spawn(async move {
            match tree.xattrs(number.0).await {
                Ok(all) => match all.iter().find(|xattr| xattr.name == name) {
                    Some(xattr) => reply_xattr(&xattr.value, size, reply),
                    None => reply.error(Errno::ENODATA),
                },
                Err(trouble) => reply.error(errno(&trouble)),
            }
        });
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let tree = self.tree.clone();
        self.spawn(async move {
            match tree.xattrs(number.0).await {
                Ok(all) => {
                    let shown = all.iter().filter(|xattr| is_shown_xattr(&xattr.name));
                    let names = shown.flat_map(|xattr| [&xattr.name[..], b"\0"].concat());
                    reply_xattr(&names.collect::<Vec<u8>>(), size, reply);
                }
                Err(trouble) => reply.error(errno(&trouble)),
            }
        });
    }
}

async fn read(tree: Arc<Tree>, open: Arc<OpenFile>, offset: u64, len: u64, reply: ReplyData) {
    let remote = tree.server_path(&open.path);
    match tree.content.read(&remote, &open.file, offset, len as usize).await {
        Ok(bytes) => {
            tree.content.counters.add_read(len);
            reply.data(bytes.as_slice());
        }
        Err(fault) => {
            let (path, cause) = (remote.to_string(), &fault.text);
            tracing::warn!(path, offset, cause, "read failed");
            reply.error(errno(&TreeError::Read(fault)));
        }
    }
}
