//! Polls the file systems of exports and the ports of RDMA devices every few seconds. On a
//! thread of its own, because a file system may not answer. The status page and the metrics
//! read the last report.

use crate::exports::open::ExportFolder;
use crate::rdma::rails::Rdma;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_doctor::counters::{Port, read_ports};
use verbatim_proto::Fault;
use verbatim_telemetry::serve::ExportLevels;

/// A report older than this means that a file system does not answer.
const STALE_AFTER: Duration = Duration::from_secs(30);

/// The result of the last poll.
#[derive(Clone)]
pub struct HealthReport {
    /// The time of the poll; before the first one, the start of the server.
    pub at: Instant,
    pub exports: Vec<ExportLevels>,
    /// Exports whose file system failed, and why.
    pub failed: Vec<(String, String)>,
    pub ports: Vec<Port>,
}

impl Default for HealthReport {
    /// An empty report, dated now.
    fn default() -> Self {
        let (exports, failed, ports) = Default::default();
        Self { at: Instant::now(), exports, failed, ports }
    }
}

impl HealthReport {
    /// Polls exports, and the ports that links may use: other ports may be down on purpose.
    pub fn poll(root: &Path, rdma: &Rdma, exports: &BTreeMap<Vec<u8>, Arc<ExportFolder>>) -> Self {
        let mut health = Self { ports: read_ports(root), ..Self::default() };
        health.ports.retain(|Port { levels, .. }| rdma.may_use(&levels.device, levels.port));
        for (name, export) in exports {
            let hidden = export.acl.hidden;
            let name = match hidden {
                true => "(hidden)".to_owned(),
                false => String::from_utf8_lossy(name).into_owned(),
            };
            match rustix::fs::fstatvfs(export.folder.fd()) {
                Ok(_) if hidden => {}
                Ok(stat) => {
                    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
                    let (free_bytes, size_bytes) = (bytes(stat.f_bavail), bytes(stat.f_blocks));
                    health.exports.push(ExportLevels { name, free_bytes, size_bytes });
                }
                Err(error) => {
                    let fault = Fault::from_io("cannot be looked at", &error.into());
                    health.failed.push((name, fault.text));
                }
            }
        }
        health.at = Instant::now();
        health
    }

    /// Why clients cannot be served; `None` if they can.
    pub fn failure(&self, now: Instant) -> Option<String> {
        if let Some((name, why)) = self.failed.first() {
            return Some(format!("export {name}: {why}"));
        }
        let age = now.saturating_duration_since(self.at);
        (age > STALE_AFTER)
            .then(|| format!("a file system of an export has not answered for {} s", age.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::rdma_setup::rails_of;

    #[test]
    fn only_ports_that_the_configuration_may_use_are_looked_at() {
        let root = tempfile::tempdir().expect("a folder");
        for port in ["mlx5_0/ports/1", "mlx5_0/ports/2", "mlx5_1/ports/1"] {
            let port = root.path().join("sys/class/infiniband").join(port);
            std::fs::create_dir_all(&port).expect("a folder");
            std::fs::write(port.join("state"), "1: DOWN\n").expect("a file");
        }
        let seen = |toml: &str| -> Vec<(String, u8)> {
            let rdma = rails_of(&Config::from_toml(toml, "test").expect("good").rdma);
            let ports = HealthReport::poll(root.path(), &rdma, &BTreeMap::new()).ports;
            ports.into_iter().map(|it| (it.levels.device, it.levels.port)).collect()
        };
        let port = |device: &str, port| (device.to_owned(), port);
        assert_eq!(seen("").len(), 3);
        assert_eq!(seen("rdma.enable = false"), []);
        assert_eq!(seen("rdma.device = \"mlx5_1\""), [port("mlx5_1", 1)]);
        assert_eq!(seen("rdma.port = 2"), [port("mlx5_0", 2)]);
    }

    #[test]
    fn a_file_system_that_never_answered_is_noticed() {
        let health = HealthReport::default();
        assert_eq!(health.failure(health.at + STALE_AFTER), None);
        let late = health.failure(health.at + 2 * STALE_AFTER);
        assert!(late.is_some_and(|text| text.contains("has not answered for 60 s")));
    }
}
