//! The door: what the kernel asks becomes questions to `Tree` and `Content`, on tasks of
//! their own, so that one that waits keeps nobody else waiting. Bytes that are in the
//! cache are answered on the spot. Every question has an answer: a reply that is dropped
//! is an error to the kernel, and all that is waited for has a deadline.

use super::cache::CacheFile;
use super::fill::Progress;
use super::handles::{Handles, OpenFile};
use super::listing::{Facts, Kind, Listing};
use super::nodes::ROOT;
use super::status::ATTRIBUTE;
use super::tree::{Tree, Trouble};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use verbatim_proto::Fault;

/// How long the kernel believes what it was told.
const TTL: Duration = Duration::from_secs(1);

/// Folders with more entries than this are listed without making the kernel know each.
const PLUS_ENTRIES_MAX: usize = 8192;

/// Requests that the kernel may have under way without anybody waiting.
const BACKGROUND_MAX: u16 = 64;

/// The largest read ahead of the kernel.
const KERNEL_AHEAD_BYTES: u32 = 1 << 20;

/// The door.
pub(super) struct Door {
    pub tree: Arc<Tree>,
    pub handles: Arc<Handles>,
    pub filled: Arc<Progress>,
    pub runtime: Handle,
    pub owner: (u32, u32),
}

impl Door {
    fn attr(&self, number: u64, facts: Facts) -> FileAttr {
        attr_of(number, facts, self.owner)
    }

    /// Answers on a task of its own.
    fn spawn(&self, answer: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(answer);
    }
}

impl Filesystem for Door {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is a help where the kernel has it, and nothing needs it.
        for flag in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        if let Err(most) = config.set_max_readahead(KERNEL_AHEAD_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        let passes = self.tree.passthrough.wanted()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.tree.passthrough.kernel_has(passes);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (tree, owner, name) = (self.tree.clone(), self.owner, name.as_bytes().to_vec());
        self.spawn(async move {
            match tree.look_up(parent.0, &name).await {
                Ok((number, facts)) => {
                    let attr = attr_of(number, facts, owner);
                    reply.entry(&TTL, &attr, Generation(0));
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
        if number.0 != ROOT {
            let facts = tree.nodes().facts(number.0);
            return match facts {
                Some(facts) => reply.attr(&TTL, &self.attr(number.0, facts)),
                None => reply.error(Errno::ESTALE),
            };
        }
        self.spawn(async move { reply.attr(&TTL, &attr_of(ROOT, tree.root().await, owner)) });
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
            let held = tree.passthrough.may() && tree.hold(&file).await;
            let back = |file: &CacheFile| {
                let backed = held.then(|| reply.open_backing(file.data()))?;
                tree.passthrough.learn(backed)
            };
            let (handle, backing) = handles.open(number.0, path, (file, held), back);
            tree.content.counts.opened(backing.is_some());
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
        tree.look_ahead(&open, offset, len);
        if let Some(Ok(bytes)) = open.file.read(offset, len as usize) {
            tree.content.counts.read(len);
            return reply.data(&bytes);
        }
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
            self.tree.nodes().close(open.number);
            self.tree.content.cache.used(&open.file);
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
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (tree, handles) = (self.tree.clone(), self.handles.clone());
        self.spawn(async move {
            let listing = match list(&tree, &handles, handle).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(error),
            };
            for at in offset.. {
                let Some((name, facts)) = entry(&listing, at) else { break };
                let number = match at {
                    0 | 1 => number.0,
                    _ => tree.nodes().number(number.0, name),
                };
                let kind = file_type(facts.kind);
                if reply.add(INodeNo(number), at + 1, kind, OsStr::from_bytes(name)) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (tree, handles, owner) = (self.tree.clone(), self.handles.clone(), self.owner);
        self.spawn(async move {
            let listing = match list(&tree, &handles, handle).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(error),
            };
            for at in offset.. {
                let Some((name, facts)) = entry(&listing, at) else { break };
                let mut nodes = tree.nodes();
                // The kernel takes no notice of entries without a number of their own.
                let known = at > 1 && listing.len() <= PLUS_ENTRIES_MAX;
                let own = if known { nodes.told(number.0, name, facts) } else { 0 };
                let shown = match (own, at) {
                    (0, 0 | 1) => number.0,
                    (0, _) => nodes.number(number.0, name),
                    (own, _) => own,
                };
                let attr = attr_of(own, facts, owner);
                let name = OsStr::from_bytes(name);
                if reply.add(INodeNo(shown), at + 1, name, &TTL, &attr, Generation(0)) {
                    nodes.forget(own, 1);
                    break;
                }
            }
            reply.ok();
        });
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
        // How large the source is nobody knows; what the cache holds of it is told.
        let (used, most, _) = self.tree.content.cache.usage();
        let (blocks, free) = (most / 4096, most.saturating_sub(used) / 4096);
        let nodes = self.tree.nodes().len() as u64;
        reply.statfs(blocks, free, 0, nodes, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if number.0 == ROOT && name == ATTRIBUTE {
            return sized(&self.tree.status(&self.filled), size, reply);
        }
        let (tree, name) = (self.tree.clone(), name.as_bytes().to_vec());
        if !is_told(&name) {
            return reply.error(Errno::ENODATA);
        }
        self.spawn(async move {
            match tree.xattrs(number.0).await {
                Ok(all) => match all.iter().find(|xattr| xattr.name == name) {
                    Some(xattr) => sized(&xattr.value, size, reply),
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
                    let told = all.iter().filter(|xattr| is_told(&xattr.name));
                    let names = told.flat_map(|xattr| [&xattr.name[..], b"\0"].concat());
                    sized(&names.collect::<Vec<u8>>(), size, reply);
                }
                Err(trouble) => reply.error(errno(&trouble)),
            }
        });
    }
}

async fn read(tree: Arc<Tree>, open: Arc<OpenFile>, offset: u64, len: u64, reply: ReplyData) {
    let remote = tree.remote(&open.path);
    match tree.content.read(&remote, &open.file, offset, len as usize).await {
        Ok(bytes) => {
            tree.content.counts.read(len);
            reply.data(&bytes);
        }
        Err(fault) => {
            let (path, cause) = (remote.to_string(), &fault.text);
            tracing::warn!(path, offset, cause, "a reader got an error");
            reply.error(errno(&Trouble::Reading(fault)));
        }
    }
}

async fn list(tree: &Tree, handles: &Handles, handle: FileHandle) -> Result<Arc<Listing>, Errno> {
    let folder = handles.folder(handle.0).ok_or(Errno::EBADF)?;
    let listing = folder.listing.get_or_try_init(|| tree.list(folder.number, &folder.path));
    listing.await.cloned().map_err(|trouble| errno(&trouble))
}

/// What is at a place of a folder: itself, what it is in, then its entries.
fn entry(listing: &Listing, at: u64) -> Option<(&[u8], Facts)> {
    let folder = Facts { kind: Kind::Folder, mode: 0o755, size: 4096, mtime_ns: 0 };
    match at {
        0 => Some((b".", folder)),
        1 => Some((b"..", folder)),
        _ => listing.at((at - 2) as usize),
    }
}

/// Attributes of the system describe the source's machine, not this one.
fn is_told(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"trusted.")
}

fn sized(value: &[u8], size: u32, reply: ReplyXattr) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        most if value.len() <= most => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

fn errno(trouble: &Trouble) -> Errno {
    let Fault { code, .. } = match trouble {
        Trouble::Outdated => return Errno::ESTALE,
        Trouble::Reading(fault) | Trouble::Asking(fault) => fault,
    };
    trouble.errno(*code)
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Folder => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        // Which of them it is the server does not say; none can be used here.
        Kind::Special => FileType::NamedPipe,
    }
}

fn attr_of(number: u64, facts: Facts, (uid, gid): (u32, u32)) -> FileAttr {
    let since = Duration::from_nanos(facts.mtime_ns.unsigned_abs());
    let mtime = match facts.mtime_ns >= 0 {
        true => UNIX_EPOCH.checked_add(since),
        false => UNIX_EPOCH.checked_sub(since),
    };
    let mtime: SystemTime = mtime.unwrap_or(UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(number),
        size: facts.size,
        blocks: facts.size.div_ceil(512),
        atime: mtime,
        mtime,
        ctime: mtime,
        crtime: mtime,
        kind: file_type(facts.kind),
        perm: (facts.mode & 0o777) as u16,
        nlink: if facts.kind == Kind::Folder { 2 } else { 1 },
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
