//! The user's own settings for servers: `client.toml` in the config folder says
//! which token goes to which server. Owns that file's keys and the order in which
//! a token is looked for. Never keeps a secret that others can read: such a file
//! is refused. Every client command calls [`ClientSettings::key`] once.

use crate::{CertificateFiles, ClientKey, ControlError, connect::host_port, private};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};
use zeroize::{Zeroize, Zeroizing};

/// What a user has set for servers.
#[derive(Debug, Default)]
pub struct ClientSettings {
    path: PathBuf,
    servers: BTreeMap<String, Server>,
}

impl ClientSettings {
    /// Reads `client.toml` in a config folder; no file is no settings.
    ///
    /// A file that holds a token and that others can read is an error.
    pub fn load(config_dir: &Path) -> Result<Self, ControlError> {
        let path = config_dir.join("client.toml");
        let Some((bytes, is_private)) = private::read_guarded(&path)? else {
            return Ok(Self { path, ..Self::default() });
        };
        // The parser's own message would quote the line, and the line may be a token.
        let text = Zeroizing::new(private::text(&path, bytes)?);
        let file: SettingsFile = toml::from_str(&text).map_err(|e| {
            private::bad(&path, format!("it cannot be parsed{}", line_of(&e, &path)))
        })?;
        if file.server.values().any(|server| server.token.is_some()) {
            is_private?;
        }
        let lower = |(name, server): (String, Server)| (name.to_ascii_lowercase(), server);
        Ok(Self { path, servers: file.server.into_iter().map(lower).collect() })
    }

    /// Finds the key to prove to a server: that of a flag, of `RDMA_TOKEN_FILE`, of
    /// `RDMA_TOKEN`, or what is set for this server, whichever comes first.
    pub fn key(
        &self,
        host: &str,
        port: u16,
        flag: Option<&Path>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<ClientKey>, ControlError> {
        let set = |name| environment(name).filter(|value| !value.is_empty());
        if let Some(path) = flag.map(Path::to_owned).or_else(|| set(FILE_VARIABLE).map(Into::into))
        {
            return ClientKey::load(&path).map(Some);
        }
        let of_text = |origin: &str, text: &str| {
            let key = ClientKey::from_token(text.trim());
            key.map(Some).map_err(|e| ControlError::Local {
                what: format!("cannot use {origin}"),
                cause: e.to_string(),
                hint: None,
            })
        };
        if let Some(token) = set(TOKEN_VARIABLE) {
            return of_text(TOKEN_VARIABLE, &token.to_string_lossy());
        }
        match self.server(host, port) {
            Some(Server { token: Some(token), .. }) => {
                of_text(&self.path.display().to_string(), token)
            }
            Some(Server { token_file: Some(path), .. }) => ClientKey::load(path).map(Some),
            _ => Ok(None),
        }
    }
}

impl ClientSettings {
    /// What is set for a server, under its name and port or its name alone.
    fn server(&self, host: &str, port: u16) -> Option<&Server> {
        let whole = host_port(host, port);
        let bare = whole.rsplit_once(':').map_or(whole.as_str(), |(host, _)| host);
        self.servers.get(&whole).or_else(|| self.servers.get(bare))
    }

    /// Finds the certificates for a server: those of flags, and else what is set for it.
    pub fn certificates(&self, host: &str, port: u16, flags: CertificateFiles) -> CertificateFiles {
        let set = self.server(host, port).map(|Server { ca, cert, key, .. }| CertificateFiles {
            ca: ca.clone(),
            cert: cert.clone(),
            key: key.clone(),
        });
        flags.or(set.unwrap_or_default())
    }
}

/// Where in the file an error is, without what is there.
fn line_of(error: &toml::de::Error, path: &Path) -> String {
    let (Some(span), Ok(text)) = (error.span(), std::fs::read_to_string(path)) else {
        return String::new();
    };
    let before = text.get(..span.start).unwrap_or_default();
    format!(" in line {}: README.md shows what it may hold", before.matches('\n').count() + 1)
}

/// What is in the file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SettingsFile {
    /// By `host` or `host:port`.
    server: BTreeMap<String, Server>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("token_file", &self.token_file).finish_non_exhaustive()
    }
}

/// Names the file of a token.
const FILE_VARIABLE: &str = "RDMA_TOKEN_FILE";

/// Holds a token itself. Commands that need none are started without it.
pub const TOKEN_VARIABLE: &str = "RDMA_TOKEN";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PublicKey;
    use std::os::unix::fs::PermissionsExt;

    struct World {
        dir: tempfile::TempDir,
        keys: Vec<ClientKey>,
    }

    impl World {
        /// Four keys, each in a file of its number.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let keys: Vec<_> = (0..4).map(|_| ClientKey::generate().unwrap()).collect();
            for (number, key) in keys.iter().enumerate() {
                key.save_new(&dir.path().join(number.to_string())).unwrap();
            }
            Self { dir, keys }
        }

        fn file(&self, number: usize) -> PathBuf {
            self.dir.path().join(number.to_string())
        }

        fn settings(&self, text: &str, mode: u32) -> Result<ClientSettings, ControlError> {
            let path = self.dir.path().join("client.toml");
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            ClientSettings::load(self.dir.path())
        }

        fn public(&self, number: usize) -> Option<PublicKey> {
            Some(self.keys[number].public())
        }
    }

    fn none(_: &str) -> Option<OsString> {
        None
    }

    #[test]
    fn a_flag_goes_before_the_environment_and_that_before_the_file() {
        let world = World::new();
        let text = format!("[server.h]\ntoken_file = {:?}\n", world.file(3));
        let settings = world.settings(&text, 0o644).unwrap();
        let find = |flag: Option<&Path>, file: bool, token: bool| {
            let environment = |name: &str| match name {
                "RDMA_TOKEN_FILE" if file => Some(world.file(1).into()),
                "RDMA_TOKEN" if token => Some(world.keys[2].to_token().as_str().into()),
                _ => None,
            };
            settings.key("h", 1, flag, environment).unwrap().map(|key| key.public())
        };
        assert_eq!(find(Some(&world.file(0)), true, true), world.public(0));
        assert_eq!(find(None, true, true), world.public(1));
        assert_eq!(find(None, false, true), world.public(2));
        assert_eq!(find(None, false, false), world.public(3));
    }

    #[test]
    fn a_server_is_found_by_its_port_before_its_name_and_others_get_nothing() {
        let world = World::new();
        let text = format!(
            "[server.\"Host:7\"]\ntoken_file = {:?}\n[server.host]\ntoken_file = {:?}\n",
            world.file(0),
            world.file(1)
        );
        let settings = world.settings(&text, 0o644).unwrap();
        let find = |host: &str, port| settings.key(host, port, None, none).unwrap();
        assert_eq!(find("HOST", 7).map(|key| key.public()), world.public(0));
        assert_eq!(find("host", 8).map(|key| key.public()), world.public(1));
        assert!(find("other", 7).is_none());
        assert!(ClientSettings::load(Path::new("/none")).unwrap().servers.is_empty());
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let world = World::new();
        let text = format!("[server.h]\ntoken = {:?}\n", *world.keys[0].to_token());
        let settings = world.settings(&text, 0o600).unwrap();
        let key = settings.key("h", 1, None, none).unwrap();
        assert_eq!(key.map(|key| key.public()), world.public(0));
        assert!(!format!("{settings:?}").contains(&*world.keys[0].to_token()));

        let error = world.settings(&text, 0o640).unwrap_err();
        assert!(error.to_string().contains("client.toml") && error.to_string().contains("0640"));
        assert!(error.hint().unwrap().starts_with("chmod 600"));
        std::fs::set_permissions(world.file(1), PermissionsExt::from_mode(0o604)).unwrap();
        let environment =
            |name: &str| (name == "RDMA_TOKEN_FILE").then(|| OsString::from(world.file(1)));
        let error = ClientSettings::default().key("h", 1, None, environment).unwrap_err();
        assert!(error.to_string().contains("0604"), "{error}");
    }

    #[test]
    fn a_broken_file_is_named_with_its_line_and_not_quoted() {
        let world = World::new();
        let error = world.settings("[server.h]\ntoken = vbt1-secret\n", 0o600).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains("line 2") && !text.contains("secret"), "{text}");
        let environment = |name: &str| (name == "RDMA_TOKEN").then(|| OsString::from("hunter2"));
        let error = ClientSettings::default().key("h", 1, None, environment).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("RDMA_TOKEN") && !text.contains("hunter2"), "{text}");
    }
}
