//! `--share`: one folder, one token that ends with this process or sooner, and
//! one line that has all the other machine needs: the token, the address, the
//! fingerprint. Owns that line. The token is in no file.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use verbatim_control::{ClientKey, ControlError, Fingerprint, Grant, Token, unix_now};
use verbatim_fabric::verbs::local_address_towards;
use verbatim_server::config::ConfigError;
use verbatim_server::config::duration;
use verbatim_server::config::export::{Export, ExportSpec, Mode};
use verbatim_usage::{note, out};

/// How long the line may be used unless told otherwise, in seconds.
const SHARE_SECONDS: u64 = 3600;

/// A folder that is shared, and with what.
pub struct Share {
    pub token: Token,
    secret: ClientKey,
    export: Export,
    seconds: u64,
}

/// Reads what is to be shared.
pub fn export(spec: &OsStr) -> Result<Export, ConfigError> {
    ExportSpec::parse(spec, Mode::ReadOnly)
}

/// Where to listen: other machines must get in, unless a flag says where.
pub fn listen(asked: Option<SocketAddr>, configured: SocketAddr) -> SocketAddr {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, configured.port()));
    asked.unwrap_or(if configured.ip().is_loopback() { everywhere } else { configured })
}

impl Share {
    /// Makes a token for this export alone.
    pub fn new(export: &Export, seconds: Option<u64>) -> Result<Self, ControlError> {
        let (secret, seconds) = (ClientKey::generate()?, seconds.unwrap_or(SHARE_SECONDS));
        let grant = Grant { export: export.name.clone(), write: export.mode == Mode::ReadWrite };
        let token = Token {
            name: "share".into(),
            key: secret.public(),
            exports: vec![grant],
            expires: Some(unix_now() + seconds),
        };
        Ok(Self { token, secret, export: export.clone(), seconds })
    }

    /// Prints the line, and for how long it is good.
    pub fn print(&self, address: SocketAddr, fingerprint: Fingerprint) {
        let address = SocketAddr::new(reachable(address.ip()), address.port());
        let (token, name) = (self.secret.to_token(), quoted(&self.export.name));
        let command = format!("RDMA_TOKEN={} rdma-cp --fingerprint {fingerprint} -r", *token);
        match self.export.mode {
            Mode::ReadOnly => out!("{command} rdma://{address}/{name} ."),
            Mode::ReadWrite => out!("{command} FILES rdma://{address}/{name}/"),
        }
        note!("paste this on the other machine; it is good for {}", duration::show(self.seconds));
    }
}

/// The address of this machine that others most likely reach; a server that listens on one
/// address is reached there.
fn reachable(listening: IpAddr) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    let outwards = local_address_towards(SocketAddr::from((DOCUMENTATION, 9)));
    outwards.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Puts a name that a shell would take apart into quotes.
fn quoted(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if name.chars().all(plain) { name.into() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

/// An address for documentation (RFC 5737): outside, and nobody's.
const DOCUMENTATION: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_listens_where_others_reach_it_unless_told_where() {
        let (near, all) = ("127.0.0.1:7".parse().unwrap(), "0.0.0.0:7".parse().unwrap());
        let far = "10.0.0.1:7".parse().unwrap();
        assert_eq!(listen(None, near), all);
        assert_eq!(listen(None, far), far);
        assert_eq!(listen(Some(near), far), near);
    }

    #[test]
    fn names_survive_a_shell() {
        assert_eq!(quoted("data-1.x"), "data-1.x");
        assert_eq!(quoted("my data"), "'my data'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn the_token_of_a_share_is_for_its_folder_and_its_time() {
        let export = export("d=/tmp:rw".as_ref()).unwrap();
        let share = Share::new(&export, Some(60)).unwrap();
        assert_eq!((share.token.may_write("d"), share.token.may_write("e")), (Some(true), None));
        assert!(share.token.is_over(unix_now() + 61) && !share.token.is_over(unix_now()));
    }
}
