//! The contenders of the comparison by name: what each is called in tables, which are ours
//! and whose bytes cross the loopback device. How they copy is in `peers`.

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `cp -a`, on the machine itself: what copying costs without a network.
    Cp,
    /// `tar` into `tar`, over a pipe.
    Tar,
    /// From an rsync daemon.
    Rsync,
    /// To an rsync daemon.
    RsyncUp,
    /// `rclone serve http`, four files and four parts of a file at a time.
    Rclone,
    /// `scp -r`, from an sshd of its own.
    Scp,
    /// The links of the product with nothing checked, as a download: no way to copy, a limit.
    RawDown,
    /// The same as an upload.
    RawUp,
    /// `rdma-cp` from a server that has the digests.
    Down,
    /// `rdma-cp` from a server that has to hash.
    FirstDown,
    /// `rdma-cp` to a server.
    Up,
    /// `rdma-sync` from a server.
    SyncDown,
    /// `rdma-sync` to a server.
    SyncUp,
}

impl Peer {
    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp -a",
            Self::Tar => "tar over a pipe",
            Self::Rsync => "rsync daemon, pull",
            Self::RsyncUp => "rsync daemon, push",
            Self::Rclone => "rclone",
            Self::Scp => "scp",
            Self::RawDown => "our links unchecked, down",
            Self::RawUp => "our links unchecked, up",
            Self::Down => "rdma-cp, digests cached",
            Self::FirstDown => "rdma-cp, first time",
            Self::Up => "rdma-cp, upload",
            Self::SyncDown => "rdma-sync",
            Self::SyncUp => "rdma-sync, upload",
        }
    }

    /// Whether it is us.
    pub fn is_ours(self) -> bool {
        self.name().starts_with("rdma-")
    }

    /// Whether its bytes cross the loopback device.
    pub fn is_on_the_wire(self) -> bool {
        !matches!(self, Self::Cp | Self::Tar)
    }
}
