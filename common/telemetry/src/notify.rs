//! Tells systemd how a service is: a line or more in a datagram to the socket
//! that it named in the environment. Where there is none, nothing is told and
//! nothing fails. By hand, because it is this little. Used by `rdma-serve`, and by
//! `rdma-sync --watch`.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A way to systemd, if this is a service of it.
#[derive(Debug, Default)]
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl Notifier {
    /// The way that the environment names.
    pub fn from_environment() -> Self {
        std::env::var_os("NOTIFY_SOCKET").map_or_else(Self::default, |name| Self::at(&name))
    }

    /// How often systemd wants to hear that the service is there, if it does: twice as often as it
    /// says, as it advises.
    pub fn beat() -> Option<Duration> {
        let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
        (micros > 1).then(|| Duration::from_micros(micros / 2))
    }

    /// The way to a socket: a path, or an abstract name behind an `@`.
    pub fn at(name: &OsStr) -> Self {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(name),
        };
        let made = UnixDatagram::unbound().and_then(|socket| {
            // A service must not hang because whoever starts it does not listen.
            socket.set_nonblocking(true)?;
            Ok((socket, address?))
        });
        Self { to: made.ok() }
    }

    /// Tells that the service is there, and nothing else.
    pub fn tell_alive(&self) {
        self.send("WATCHDOG=1\n");
    }

    /// Tells a state, such as `READY=1`, and a sentence for people.
    pub fn tell(&self, states: &[&str], sentence: &str) {
        let one_line: String =
            sentence.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = format!("{}\nSTATUS={one_line}\n", states.join("\n"));
        self.send(text.trim_start());
    }

    fn send(&self, text: &str) {
        let Some((socket, address)) = &self.to else { return };
        // It is told again with the next change.
        let _ = socket.send_to_addr(text.as_bytes(), address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("takes it");
        let bytes = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8(buffer[..bytes].to_vec()).expect("text")
    }

    #[test]
    fn states_go_to_the_socket_that_systemd_names() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("binds");
        let notifier = Notifier::at(path.as_os_str());
        notifier.tell(&["READY=1"], "in step\nwith h:/data");
        assert_eq!(received(&socket), "READY=1\nSTATUS=in step with h:/data\n");
        notifier.tell(&[], "copying");
        assert_eq!(received(&socket), "STATUS=copying\n");
        notifier.tell_alive();
        assert_eq!(received(&socket), "WATCHDOG=1\n");
        let name = format!("verbatim-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("binds");
        Notifier::at(OsStr::new(&format!("@{name}"))).tell(&["STOPPING=1"], "");
        assert_eq!(received(&socket), "STOPPING=1\nSTATUS=\n");
    }

    #[test]
    fn without_a_socket_nothing_is_told_and_nothing_fails() {
        Notifier::default().tell(&["READY=1"], "");
        Notifier::at(OsStr::new("/nowhere/at/all")).tell(&["READY=1"], "");
    }
}
