//! Links and rails on the wire: both halves of a link, which of the server's
//! devices it ends at, and under which names a window is known there. A device
//! makes its own keys, so a window that may be read over several has a name on each.
//! Plain values; the first rail is that of the lease itself, and a session with one
//! device sends no others.

use crate::message::{Region, WindowId};
use serde::{Deserialize, Serialize};

/// Rails that one session may have.
pub const RAILS_MAX: usize = 16;

/// A client's half of a new link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkOffer {
    /// A TCP connection to the port of the control connection.
    Tcp,
    /// A simulated link, inside one process.
    Sim,
    /// A queue pair of an RDMA device.
    Verbs {
        /// Its address, in the form the fabric gives it.
        #[serde(with = "serde_bytes")]
        address: Vec<u8>,
    },
}

/// What lets a data connection join its session, once. Never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinSecret(pub [u8; 32]);

impl std::fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinSecret")
    }
}

/// The server's half of a new link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkAnswer {
    /// Connect, and begin with this secret; it works once.
    Tcp {
        /// The secret.
        secret: JoinSecret,
    },
    /// The simulated far end to take.
    Sim {
        /// Its number.
        endpoint: u64,
    },
    /// The queue pair to connect to; it is connected to the offered one already.
    Verbs {
        /// Its address, in the form the fabric gives it.
        #[serde(with = "serde_bytes")]
        address: Vec<u8>,
    },
    /// The same, at another device of the server.
    Rail(RailAnswer),
    /// Whatever was offered: connect over TCP, and speak TLS there.
    Sealed(SealedAnswer),
}

/// The server's half of a link inside TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedAnswer {
    /// What to begin with, inside TLS; it works once.
    pub secret: JoinSecret,
    /// Why nothing else will do, for the user.
    #[serde(deserialize_with = "crate::text::cleaned")]
    pub reason: String,
}

/// The server's half of a link that does not end at its first device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailAnswer {
    /// Which device, from 1: the first one is not told.
    pub rail: u16,
    /// The address of the queue pair, in the form the fabric gives it.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
}

/// The names of a window on the rails behind the first; sent before its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowRails {
    /// The window.
    pub window: WindowId,
    /// Its name on rail 1, 2 and so on.
    pub regions: Vec<Region>,
}
