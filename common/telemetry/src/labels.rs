//! The values that labels may have: few, fixed, and the same words in metrics,
//! in logs and in the status of the server.

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use std::fmt::Write;

/// Makes an enum whose variants are values of a label.
macro_rules! label {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every value there is.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word for it.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
                encoder.write_str(self.word())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

label! {
    /// Which way data goes, as the client sees it.
    Direction {
        /// From the server.
        Read = "read",
        /// To the server.
        Write = "write",
    }
}

label! {
    /// What carries data.
    Transport {
        /// RDMA.
        Verbs = "verbs",
        /// Sockets.
        Tcp = "tcp",
        /// A simulated network, in tests.
        Sim = "sim",
    }
}

impl Transport {
    /// The transport of a link that calls itself so: "tcp", "verbs mlx5_0/1".
    pub fn of(name: &str) -> Self {
        match name.split_whitespace().next() {
            Some("verbs") => Self::Verbs,
            Some("sim") => Self::Sim,
            _ => Self::Tcp,
        }
    }
}

label! {
    /// What became of a chunk.
    Verdict {
        /// Its digests matched.
        Verified = "verified",
        /// A digest did not match, and it is moved again.
        Mismatched = "mismatched",
        /// It could not be stored.
        Failed = "failed",
    }
}

label! {
    /// What a client asks for.
    Operation {
        /// Open a file to read it.
        Open = "open",
        /// Close a file that was read.
        Close = "close",
        /// Make a temporary file.
        Create = "create",
        /// Give a whole file its name.
        Commit = "commit",
        /// List a folder, a page at a time.
        Scan = "scan",
        /// Make a folder or a link.
        Make = "make",
    }
}

label! {
    /// How something ended.
    Outcome {
        /// Well.
        Ok = "ok",
        /// Not.
        Failed = "failed",
    }
}

label! {
    /// What is timed.
    Step {
        /// Opening a batch of files, from the request to the answer.
        Open = "open",
        /// Making a window: its digests, and its registration.
        Prepare = "prepare",
        /// A window in the hands of a client, from the lease to the release.
        Read = "read",
        /// Checking and storing an uploaded chunk.
        Write = "write",
        /// Making a batch of whole files durable under their names.
        Commit = "commit",
    }
}

label! {
    /// Who must act on an error.
    Class {
        /// The same request may succeed later.
        Retry = "retry",
        /// The other side.
        Peer = "peer",
        /// This side.
        Local = "local",
        /// Us: only a bug gets there.
        Bug = "bug",
    }
}

label! {
    /// Why a client's data goes over TCP.
    Fallback {
        /// The server's configuration says so.
        Disabled = "disabled",
        /// The server has no device that works, and said why when it started.
        NoDevice = "no_device",
        /// The client asked for a queue pair and the server could not make it.
        Refused = "refused",
        /// The client did not ask, though the server has a device.
        Client = "client",
        /// The queue pairs of the session failed.
        Lost = "lost",
        /// An export moves encrypted only.
        Encrypted = "encrypted",
    }
}

label! {
    /// Why bytes of an upload did not have to move.
    Spared {
        /// A file of the server had them.
        Found = "found",
        /// They are a hole.
        Hole = "hole",
        /// An earlier session had moved them.
        Resumed = "resumed",
    }
}

label! {
    /// What became of a connection.
    Entry {
        /// A session began.
        Accepted = "accepted",
        /// Its greeting or its key was not good.
        Refused = "refused",
        /// There was no place.
        Full = "full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_is_told_by_the_first_word_of_its_name() {
        assert_eq!(Transport::of("verbs mlx5_0/1"), Transport::Verbs);
        assert_eq!(Transport::of("tcp"), Transport::Tcp);
        assert_eq!(Transport::of("sim"), Transport::Sim);
    }
}
