//! Configuration of rdma-serve: one TOML file, every key with a default and a range. Owns the
//! keys, their checks and their errors; an unknown key is an error. It never reads the command
//! line and never opens the paths it contains: the binary overrides the public fields with its
//! flags, then calls `Config::check`. Imports no other module of the server.

pub mod cidr;
pub mod duration;
mod error;
pub mod export;
mod file;
mod ranges;
mod rdma;
mod state_dir;
mod tables;
mod user;

pub use error::ConfigError;
use export::{Export, check_names};
use ranges::RANGES;
pub use rdma::Rdma;
use serde::{Deserialize, Serialize};
pub use state_dir::default_state_dir;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use verbatim_files::limit::processors;
use verbatim_proto::units::{device_workers_for, workers_for};
use verbatim_telemetry::Format;

pub use tables::{Cache, Limits, Log, METRICS_OFF, Metrics, Tls, Uploads};
pub use user::User;

/// Everything that can be set; `configs/rdma-serve.toml` explains each key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address and port of control and TCP data.
    pub listen: SocketAddr,
    /// The folder of keys and caches; empty stands for the default, see `state_dir`.
    pub state: PathBuf,
    /// The user that the server becomes once its port is open; empty keeps the current one.
    pub user: String,
    /// Whether it keeps the capability to change the owner of files.
    pub keep_chown: bool,
    /// Whether Landlock denies access to files that are not exported, where the kernel supports it.
    pub landlock: bool,
    /// Whether clients are admitted without authentication.
    pub insecure_no_auth: bool,
    /// The public keys that are let in; empty stands for the default, see
    /// `authorized_keys_path`.
    pub authorized_keys: PathBuf,
    /// Threads that move data; 0 stands for a number by cores, see `worker_count`.
    pub workers: u32,
    /// How long transfers may go on after SIGTERM.
    pub drain_seconds: u32,
    /// Certificates of the user's own authority.
    pub tls: Tls,
    /// What one server, and one client, may take.
    pub limits: Limits,
    /// RDMA devices.
    pub rdma: Rdma,
    /// The digest cache.
    pub cache: Cache,
    /// How long unfinished uploads are kept.
    pub uploads: Uploads,
    /// The port of metrics and the status page.
    pub metrics: Metrics,
    /// What is logged, and how.
    pub log: Log,
    /// The folders that are offered.
    #[serde(rename = "export")]
    pub exports: Vec<Export>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 20490)),
            state: PathBuf::new(),
            user: String::new(),
            keep_chown: false,
            landlock: true,
            insecure_no_auth: false,
            authorized_keys: PathBuf::new(),
            workers: 0,
            drain_seconds: 10,
            tls: Tls::default(),
            limits: Limits::default(),
            rdma: Rdma::default(),
            cache: Cache::default(),
            uploads: Uploads::default(),
            metrics: Metrics::default(),
            log: Log::default(),
            exports: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the configuration that was asked for, or that of the service where it is there.
    pub fn find(asked: Option<&Path>) -> Result<Self, ConfigError> {
        let (text, origin) = Self::text(asked)?;
        Self::from_toml(&text, &origin)
    }

    /// The text of that configuration, and where it is from; none of both where there is none.
    pub fn text(asked: Option<&Path>) -> Result<(String, String), ConfigError> {
        let service = Path::new(SERVICE_CONFIG);
        let path = asked.or_else(|| service.exists().then_some(service));
        let Some(path) = path else { return Ok(Default::default()) };
        Ok((file::text_of(path)?, path.display().to_string()))
    }

    /// Reads and checks a configuration; `origin` is where errors say it came from.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let table: Table = toml::from_str(text).map_err(|error| bad_toml(&error, text, origin))?;
        check_keys(&table, origin)?;
        check_values(&table, origin)?;
        let mut config: Self =
            toml::from_str(text).map_err(|error| bad_toml(&error, text, origin))?;
        for export in &mut config.exports {
            *export = export.clone().checked()?;
        }
        check_names(&config.exports)?;
        Ok(config)
    }

    /// Checks every value against its range, for a caller that changed some.
    pub fn check(&self, origin: &str) -> Result<(), ConfigError> {
        // Paths have no range, and those that are not UTF-8 cannot be written as TOML.
        let (state, authorized_keys, tls) = (PathBuf::new(), PathBuf::new(), Tls::default());
        let plain = Self { state, authorized_keys, tls, exports: Vec::new(), ..self.clone() };
        check_values(&as_table(&plain), origin)?;
        check_names(&self.exports)
    }

    /// The folder of keys and caches: if not set, one of the user that the server becomes.
    pub fn state_dir(&self) -> PathBuf {
        state_dir::of(&self.state, &self.user)
    }

    /// The file with the public keys that are let in.
    pub fn authorized_keys_path(&self) -> PathBuf {
        if self.authorized_keys.as_os_str().is_empty() {
            self.state_dir().join("authorized_keys")
        } else {
            self.authorized_keys.clone()
        }
    }

    /// How many threads move data: as set, or as many as there are cores, from 4 to 8.
    pub fn worker_count(&self) -> usize {
        if self.workers == 0 { workers_for(processors()) } else { self.workers as usize }
    }

    /// How many of them have links of a device: as set, or as many as there are cores, from 2 to 8.
    pub fn device_worker_count(&self) -> usize {
        if self.workers == 0 { device_workers_for(processors()) } else { self.workers as usize }
    }
}

/// Turns an error of the TOML reader into ours, with the key where the line shows one.
fn bad_toml(error: &toml::de::Error, text: &str, origin: &str) -> ConfigError {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count();
    let key = text.lines().nth(before).and_then(|line| line.split_once('=')).map(|(key, _)| key);
    let is_plain = |key: &&str| {
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let message = error.message().replace('\n', ", ");
    let text = match key.map(str::trim).filter(is_plain) {
        Some(key) => format!("{key}: {message}"),
        None => message,
    };
    ConfigError::BadToml { origin: origin.into(), line: before + 1, text }
}

fn as_table(config: &Config) -> Table {
    Table::try_from(config).expect("a configuration with UTF-8 paths is a TOML table")
}

/// Every key there is, with its table. The defaults are the list: no second one can differ.
fn known_keys() -> Vec<String> {
    let sample = Export::new("a", Path::new("/a"), Default::default()).expect("a good export");
    keys_of(&as_table(&Config { exports: vec![sample], ..Config::default() }))
}

/// The keys of a table, those of its tables behind them.
fn keys_of(table: &Table) -> Vec<String> {
    let mut keys = Vec::new();
    for (key, value) in table {
        keys.push(key.clone());
        let below: Vec<&Table> = match value {
            Value::Table(table) => vec![table],
            Value::Array(entries) => entries.iter().filter_map(Value::as_table).collect(),
            _ => Vec::new(),
        };
        for table in below {
            keys.extend(keys_of(table).iter().map(|lower| format!("{key}.{lower}")));
        }
    }
    keys
}

fn check_keys(table: &Table, origin: &str) -> Result<(), ConfigError> {
    let known = known_keys();
    let unknown = keys_of(table).into_iter().find(|key| !known.contains(key));
    unknown.map_or(Ok(()), |key| {
        let nearest = nearest_key(&key, &known);
        Err(ConfigError::UnknownKey { origin: origin.into(), key, nearest })
    })
}

/// The known key whose last name looks most like that of `key`, in its own table first, if no
/// more than a third of it differs.
fn nearest_key(key: &str, known: &[String]) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let own = last(key);
    let candidates = known.iter().filter_map(|candidate| {
        let part = strsim::damerau_levenshtein(&own, &last(candidate));
        let whole = strsim::damerau_levenshtein(key, candidate);
        (part <= own.len().div_ceil(3).min(3)).then_some((part, whole, candidate))
    });
    candidates.min().map(|(.., candidate)| candidate.clone())
}

fn check_values(table: &Table, origin: &str) -> Result<(), ConfigError> {
    let refuse = |key: &str, value: &Value, range: String| {
        let default = find(&as_table(&Config::default()), key).map(Value::to_string);
        let (origin, key, value) = (origin.into(), key.into(), value.to_string());
        let default = default.unwrap_or_default();
        Err(ConfigError::OutOfRange { origin, key, value, range, default })
    };
    for (key, range) in &RANGES {
        match find(table, key) {
            Some(value @ Value::Integer(number)) if !range.contains(number) => {
                return refuse(key, value, format!("from {} to {}", range.start(), range.end()));
            }
            _ => {}
        }
    }
    for key in rdma::FIXED_CHOICE_KEYS {
        if let Some(value) = find(table, key)
            && let Some(range) = rdma::allowed_values(key, value)
        {
            return refuse(key, value, range.into());
        }
    }
    match find(table, "listen") {
        Some(value @ Value::String(text)) if text.parse::<SocketAddr>().is_err() => {
            let range = "an IP address and a port, such as 0.0.0.0:20490 or [::]:20490";
            return refuse("listen", value, range.into());
        }
        _ => {}
    }
    match find(table, "metrics.listen") {
        Some(value @ Value::String(text))
            if text != METRICS_OFF && text.parse::<SocketAddr>().is_err() =>
        {
            let range = "an IP address and a port, such as 127.0.0.1:9469, or off";
            return refuse("metrics.listen", value, range.into());
        }
        _ => {}
    }
    match find(table, "log.level") {
        Some(value @ Value::String(text)) if !LOG_LEVELS.contains(&text.as_str()) => {
            return refuse("log.level", value, format!("one of {}", LOG_LEVELS.join(", ")));
        }
        _ => {}
    }
    match find(table, "log.format") {
        Some(value @ Value::String(text)) if Format::parse(text).is_none() => {
            refuse("log.format", value, format!("one of {}", Format::NAMES.join(", ")))
        }
        _ => Ok(()),
    }
}

fn find<'t>(table: &'t Table, key: &str) -> Option<&'t Value> {
    match key.split_once('.') {
        Some((first, rest)) => table.get(first)?.as_table().and_then(|below| find(below, rest)),
        None => table.get(key),
    }
}

/// Where the configuration of a service is, if there is one.
const SERVICE_CONFIG: &str = "/etc/verbatim/rdma-serve.toml";

/// The levels of a log, the most important first.
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

#[cfg(test)]
mod tests {
    use super::state_dir::state_dir_of;
    use super::*;
    use crate::config::export::Mode;

    const SHOWN: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/rdma-serve.toml"));

    fn refusal(text: &str) -> (String, Option<String>) {
        let error = Config::from_toml(text, "/etc/verbatim/rdma-serve.toml").unwrap_err();
        (error.to_string(), error.hint())
    }

    /// The key that a line sets, or would set if it were not a comment.
    fn key_on(line: &str) -> Option<&str> {
        let line = line.trim_start_matches(['#', ' ']);
        let (key, _) = line.split_once(" = ")?;
        key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then_some(key)
    }

    #[test]
    fn state_is_in_the_home_of_the_user_that_the_server_becomes() {
        let parse = |text: &str| Config::from_toml(text, "it").expect("good");
        let home = User::find("nobody").expect("everybody has one").state_dir();
        assert_eq!(parse("user = \"nobody\"").state_dir(), home, "whoever asks");
        let set = parse("user = \"nobody\"\nstate = \"/var/lib/verbatim\"");
        assert_eq!(set.state_dir(), Path::new("/var/lib/verbatim"));
    }

    #[test]
    fn the_shown_file_is_exactly_the_default() {
        assert_eq!(Config::from_toml(SHOWN, "shown").unwrap(), Config::default());
        let shown: Table = toml::from_str(SHOWN).unwrap();
        let mut expected = as_table(&Config::default());
        expected.remove("export");
        assert_eq!(shown, expected, "a key is missing in the file, or not at its default");
    }

    #[test]
    fn the_shown_file_has_every_key_and_a_sentence_about_it() {
        for key in known_keys() {
            let last = key.rsplit('.').next().unwrap();
            let at = SHOWN.lines().position(|line| {
                key_on(line) == Some(last)
                    || line.trim_start_matches(['#', ' ', '[']).starts_with(&format!("{last}]"))
            });
            let at = at.unwrap_or_else(|| panic!("{key} is not in configs/rdma-serve.toml"));
            let above = SHOWN.lines().nth(at.wrapping_sub(1)).unwrap_or_default();
            assert!(above.starts_with('#'), "{key} has no comment above it");
        }
    }

    #[test]
    fn the_shown_exports_work_when_they_are_uncommented() {
        let (_, examples) = SHOWN.split_once("# [[export]]").expect("examples");
        let text = format!("# [[export]]{examples}");
        let lines = text.lines().map(|line| {
            let bare = line.trim_start_matches(['#', ' ']);
            if bare.starts_with("[[export]]") || key_on(line).is_some() { bare } else { "" }
        });
        let config = Config::from_toml(&lines.collect::<Vec<_>>().join("\n"), "shown").unwrap();
        assert!(config.exports.iter().any(|export| export.mode == Mode::ReadWrite));
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::from_toml("", "empty").unwrap(), Config::default());
        Config::default().check("default").unwrap();
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file_its_table_and_its_neighbour() {
        let origin = "/etc/verbatim/rdma-serve.toml";
        for (text, key, hint) in [
            ("lisen = 1", "lisen", "did you mean \"listen\"?"),
            (
                "[limits]\nsesions_max = 1",
                "limits.sesions_max",
                "did you mean \"limits.sessions_max\"?",
            ),
            ("size_mb = 1", "size_mb", "did you mean \"cache.size_mb\"?"),
            ("[log]\nlevle = \"info\"", "log.levle", "did you mean \"log.level\"?"),
            (
                "[[export]]\npath = \"/a\"\nmod = \"ro\"",
                "export.mod",
                "did you mean \"export.mode\"?",
            ),
            ("[chache]\nenabled = true", "chache", "did you mean \"cache\"?"),
            ("colour = 1", "colour", "configs/rdma-serve.toml shows every key"),
            (
                "require_authentication = false",
                "require_authentication",
                "clients always prove a key, unless insecure_no_auth lets in anybody",
            ),
        ] {
            let expected = (format!("{origin}: unknown key \"{key}\""), Some(hint.to_owned()));
            assert_eq!(refusal(text), expected);
        }
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let (text, _) = refusal("# first\n\nworkers = \"four\"");
        let start = "/etc/verbatim/rdma-serve.toml: line 3: workers: invalid type: string \"four\"";
        assert!(text.starts_with(start), "{text}");
        for (text, line) in [
            ("[cache]\nenabled = 1", 2),
            ("limits = 3", 1),
            ("\nexport = 3", 2),
            ("[[export]]\nname = \"a\"", 1),
            ("[[export]]\npath = \"/a\"\nmode = \"r\"", 3),
            ("listen = 20490", 1),
            ("\n\nlisten", 3),
        ] {
            let (refusal, _) = refusal(text);
            assert!(refusal.contains(&format!(": line {line}: ")), "{refusal}");
            assert!(!refusal.contains('\n') && !refusal.ends_with('.'), "{refusal}");
        }
    }

    #[test]
    fn every_number_has_a_range_that_its_error_names() {
        let default = as_table(&Config::default());
        for (key, range) in &RANGES {
            assert!(find(&default, key).is_some_and(Value::is_integer), "{key}");
            for value in [range.start() - 1, range.end() + 1, i64::MIN, i64::MAX] {
                let (text, _) = refusal(&format!("{key} = {value}"));
                let (start, end) = (range.start(), range.end());
                let default = find(&default, key).expect("it has a default");
                let expected = format!(
                    "{key} = {value} is out of range: it must be from {start} to {end}; default: {default}"
                );
                assert!(text.ends_with(&expected), "{text}");
            }
            for value in [range.start(), range.end()] {
                Config::from_toml(&format!("{key} = {value}"), "edge").unwrap();
            }
        }
        let keys = keys_of(&default);
        let numbers = keys.iter().filter(|key| find(&default, key).is_some_and(Value::is_integer));
        let ranges = RANGES.len();
        let chosen = rdma::FIXED_CHOICE_KEYS
            .iter()
            .filter(|key| find(&default, key).is_some_and(Value::is_integer));
        assert_eq!(numbers.count(), ranges + chosen.count(), "a number has no range");
    }

    #[test]
    fn addresses_and_levels_are_checked() {
        let (text, _) = refusal("listen = \"localhost:20490\"");
        assert!(text.contains("listen = \"localhost:20490\" is out of range"), "{text}");
        let (text, _) = refusal("log.level = \"loud\"");
        assert!(text.contains("must be one of error, warn, info, debug, trace"), "{text}");
        assert!(Config::from_toml("listen = \"[::1]:0\"", "six").is_ok());
    }

    #[test]
    fn a_value_changed_by_a_flag_is_checked_too() {
        let mut config = Config { workers: 257, ..Config::default() };
        let error = config.check("command line").unwrap_err();
        let text = "workers = 257 is out of range: it must be from 0 to 256; default: 0";
        assert_eq!(error.to_string(), format!("command line: {text}"));
        config.workers = 3;
        config.drain_seconds = u32::MAX;
        assert!(config.check("command line").is_err());
    }

    #[test]
    fn exports_are_named_and_told_apart() {
        let text = r#"
            export = [{ path = "/srv/data" }, { name = "up", path = "/srv/in", mode = "rw" }]
        "#;
        let exports = Config::from_toml(text, "two").unwrap().exports;
        assert_eq!((exports[0].name.as_str(), exports[0].mode), ("data", Mode::ReadOnly));
        assert_eq!((exports[1].name.as_str(), exports[1].mode), ("up", Mode::ReadWrite));
        let (text, _) = refusal(&text.replace("up", "data"));
        assert!(text.contains("/srv/data and /srv/in"), "{text}");
        let (text, _) = refusal("[[export]]\nname = \"a/b\"\npath = \"/srv\"");
        assert!(text.contains("has a / in it"), "{text}");
    }

    #[test]
    fn empty_values_stand_for_what_is_chosen() {
        let config = Config { state: "/s".into(), ..Config::default() };
        assert_eq!(config.state_dir(), Path::new("/s"));
        assert_eq!(config.authorized_keys_path(), Path::new("/s/authorized_keys"));
        assert!((4..=8).contains(&config.worker_count()));
        assert!((2..=config.worker_count()).contains(&config.device_worker_count()));
        assert_eq!(Config { workers: 20, ..config }.worker_count(), 20);
        assert_eq!(Config::default().state_dir(), default_state_dir());
    }

    #[test]
    fn the_state_folder_follows_the_environment() {
        let dir = |xdg: Option<&str>, home: Option<&str>| {
            state_dir_of(xdg.map(Into::into), home.map(Into::into))
        };
        assert_eq!(dir(Some("/x"), Some("/h")), Path::new("/x/verbatim"));
        assert_eq!(dir(None, Some("/h")), Path::new("/h/.local/state/verbatim"));
        assert_eq!(dir(Some(""), Some("/h")), Path::new("/h/.local/state/verbatim"));
        assert_eq!(dir(Some("x"), None), Path::new("/var/lib/verbatim"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Config::find(Some(Path::new("/none/rdma-serve.toml"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read /none/rdma-serve.toml: no such file or directory"
        );
        assert!(error.hint().is_some());
    }
}
