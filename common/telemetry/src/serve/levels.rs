//! What a server has at a moment: sessions, memory, links, disks, ports. The
//! server fills `Levels` when somebody asks; this file says what each is called.
//! A port or an export that is gone is not shown any more. Names that others gave are
//! escaped here: the library writes labels as they are.

use super::add;
use crate::labels::Transport;
use crate::run::escaped;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a server has now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// When it began, in seconds since 1970.
    pub start_time: f64,
    /// Sessions.
    pub sessions: u64,
    /// Links of these, by what carries them.
    pub links: Vec<(Transport, u64)>,
    /// Queue pairs that carry data, and those that are being ended.
    pub queue_pairs: (u64, u64),
    /// Regions that clients may name.
    pub regions: u64,
    /// Bytes that are pinned for devices.
    pub pinned_bytes: u64,
    /// Bytes that may be.
    pub pinned_bytes_max: u64,
    /// Upload slots that clients hold.
    pub slots: u64,
    /// Bytes of memory that are kept for clients.
    pub client_bytes: u64,
    /// Bytes that may be.
    pub client_bytes_max: u64,
    /// Digest windows found in the cache, and not found.
    pub cache_lookups: (u64, u64),
    /// Windows in the cache.
    pub cache_entries: u64,
    /// What they take.
    pub cache_bytes: u64,
    /// When the server's certificate ends, in seconds since 1970.
    pub certificate_end: Option<f64>,
    /// The exports.
    pub exports: Vec<ExportLevels>,
    /// The ports of RDMA devices.
    pub ports: Vec<PortLevels>,
}

/// The file system of an export.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportLevels {
    /// What clients call it.
    pub name: String,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Bytes it has in all.
    pub size_bytes: u64,
}

/// A port, as the kernel counts it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortLevels {
    /// The device.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// Whether it carries traffic.
    pub active: bool,
    /// Its speed in bytes a second.
    pub bytes_per_second: f64,
    /// Bytes received, and sent; not every driver counts them.
    pub bytes: Option<(u64, u64)>,
    /// Packets received, and sent.
    pub packets: Option<(u64, u64)>,
    /// What went wrong, by the driver's name for it.
    pub errors: Vec<(String, u64)>,
    /// One-sided requests of peers that arrived: reads, writes.
    pub requests: Option<(u64, u64)>,
}

/// The metrics that show levels.
pub(super) struct Shown {
    start_time: Gauge<f64, AtomicU64>,
    sessions: Gauge,
    links: Family<OfLink, Gauge>,
    queue_pairs: Family<OfState, Gauge>,
    regions: Gauge,
    pinned: Gauge,
    pinned_max: Gauge,
    slots: Gauge,
    client: Gauge,
    client_max: Gauge,
    cache_lookups: Family<OfResult, Counter>,
    cache_entries: Gauge,
    cache_bytes: Gauge,
    certificate_end: Family<Nothing, Gauge<f64, AtomicU64>>,
    export_free: Family<OfExport, Gauge>,
    export_size: Family<OfExport, Gauge>,
    port_active: Family<OfPort, Gauge>,
    port_rate: Family<OfPort, Gauge<f64, AtomicU64>>,
    port_bytes: Family<OfWay, Counter>,
    port_packets: Family<OfWay, Counter>,
    port_errors: Family<OfPortError, Counter>,
    port_requests: Family<OfRequest, Counter>,
}

impl Shown {
    pub fn new(to: &mut Registry, version: &'static str) -> Self {
        to.register("build", "The version that runs", Info::new(vec![("version", version)]));
        Self {
            start_time: add(to, "start_time_seconds", "When the server began, since 1970"),
            sessions: add(to, "sessions", "Clients that are in"),
            links: add(to, "links", "Data links that are up"),
            queue_pairs: add(to, "queue_pairs", "Queue pairs: rts carry data, err are ending"),
            regions: add(to, "regions", "Registered regions that clients may name"),
            pinned: add(to, "pinned_bytes", "Memory that is pinned for RDMA devices"),
            pinned_max: add(to, "pinned_limit_bytes", "Memory that may be pinned"),
            slots: add(to, "slots", "Upload slots that clients hold"),
            client: add(to, "client_memory_bytes", "Memory that is kept for clients"),
            client_max: add(to, "client_memory_limit_bytes", "Memory that may be"),
            cache_lookups: add(to, "cache_lookups", "Windows looked up in the digest cache"),
            cache_entries: add(to, "cache_entries", "Windows in the digest cache"),
            cache_bytes: add(to, "cache_bytes", "What the digest cache takes"),
            certificate_end: add(
                to,
                "certificate_expiry_seconds",
                "When the server's certificate ends, since 1970",
            ),
            export_free: add(to, "export_free_bytes", "Room in the file system of an export"),
            export_size: add(to, "export_size_bytes", "Size of the file system of an export"),
            port_active: add(to, "port_active", "Whether a port of an RDMA device is ACTIVE"),
            port_rate: add(to, "port_rate_bytes_per_second", "Speed of a port that is ACTIVE"),
            port_bytes: add(to, "port_bytes", "Bytes through a port, RDMA included"),
            port_packets: add(to, "port_packets", "Packets through a port, RDMA included"),
            port_errors: add(to, "port_errors", "Errors a port counted"),
            port_requests: add(
                to,
                "port_requests",
                "One-sided requests of peers that a port counted",
            ),
        }
    }

    pub fn set(&self, levels: &Levels) {
        let gauge = |gauge: &Gauge, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.start_time.set(levels.start_time);
        gauge(&self.sessions, levels.sessions);
        for &(transport, count) in &levels.links {
            gauge(&self.links.get_or_create(&OfLink { transport }), count);
        }
        let (rts, err) = levels.queue_pairs;
        for (state, count) in [("rts", rts), ("err", err)] {
            gauge(&self.queue_pairs.get_or_create(&OfState { state }), count);
        }
        gauge(&self.regions, levels.regions);
        gauge(&self.pinned, levels.pinned_bytes);
        gauge(&self.pinned_max, levels.pinned_bytes_max);
        gauge(&self.slots, levels.slots);
        gauge(&self.client, levels.client_bytes);
        gauge(&self.client_max, levels.client_bytes_max);
        let (hits, misses) = levels.cache_lookups;
        for (result, count) in [("hit", hits), ("miss", misses)] {
            store(&self.cache_lookups.get_or_create(&OfResult { result }), count);
        }
        gauge(&self.cache_entries, levels.cache_entries);
        gauge(&self.cache_bytes, levels.cache_bytes);
        if let Some(end) = levels.certificate_end {
            self.certificate_end.get_or_create(&Nothing {}).set(end);
        }
        self.export_free.clear();
        self.export_size.clear();
        for ExportLevels { name, free_bytes, size_bytes } in &levels.exports {
            let of = OfExport { export: escaped(name) };
            gauge(&self.export_free.get_or_create(&of), *free_bytes);
            gauge(&self.export_size.get_or_create(&of), *size_bytes);
        }
        self.set_ports(&levels.ports);
    }

    fn set_ports(&self, ports: &[PortLevels]) {
        self.port_active.clear();
        self.port_rate.clear();
        self.port_bytes.clear();
        self.port_packets.clear();
        self.port_errors.clear();
        self.port_requests.clear();
        for port in ports {
            let (device, number) = (escaped(&port.device), u32::from(port.port));
            let of = OfPort { device: device.clone(), port: number };
            self.port_active.get_or_create(&of).set(i64::from(port.active));
            // A port that is down runs at nothing, and its driver makes up a rate.
            if port.active {
                self.port_rate.get_or_create(&of).set(port.bytes_per_second);
            }
            let way = |direction| OfWay { device: device.clone(), port: number, direction };
            for (counters, family) in
                [(port.bytes, &self.port_bytes), (port.packets, &self.port_packets)]
            {
                if let Some((received, sent)) = counters {
                    store(&family.get_or_create(&way("received")), received);
                    store(&family.get_or_create(&way("sent")), sent);
                }
            }
            for (error, count) in &port.errors {
                let error = escaped(error);
                let of = OfPortError { device: device.clone(), port: number, error };
                store(&self.port_errors.get_or_create(&of), *count);
            }
            if let Some((reads, writes)) = port.requests {
                for (operation, count) in [("read", reads), ("write", writes)] {
                    let of = OfRequest { device: device.clone(), port: number, operation };
                    store(&self.port_requests.get_or_create(&of), count);
                }
            }
        }
    }
}

/// Shows what somebody else counts.
fn store(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLink {
    transport: Transport,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResult {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfExport {
    export: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPort {
    device: String,
    port: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfWay {
    device: String,
    port: u32,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPortError {
    device: String,
    port: u32,
    error: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    device: String,
    port: u32,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Nothing {}

#[cfg(test)]
impl Levels {
    /// Everything there can be, once.
    pub(crate) fn sample() -> Self {
        let export = ExportLevels { name: "data".into(), free_bytes: 1, size_bytes: 2 };
        let port = PortLevels {
            device: "mlx5_0".into(),
            port: 1,
            active: true,
            bytes_per_second: 5e10,
            bytes: Some((1 << 40, 7)),
            packets: Some((3, 4)),
            errors: vec![("link_downed".into(), 1)],
            requests: Some((5, 6)),
        };
        Self {
            links: vec![(Transport::Tcp, 4)],
            queue_pairs: (8, 1),
            cache_lookups: (9, 10),
            certificate_end: Some(2e9),
            exports: vec![export],
            ports: vec![port],
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::ServeMetrics;

    #[test]
    fn levels_are_those_of_now_and_what_is_gone_is_gone() {
        let metrics = ServeMetrics::new("1");
        let text = metrics.text(&Levels::sample());
        for line in [
            "rdma_serve_port_bytes_total{device=\"mlx5_0\",port=\"1\",direction=\"received\"} 1099511627776",
            "rdma_serve_port_requests_total{device=\"mlx5_0\",port=\"1\",operation=\"write\"} 6",
            "rdma_serve_export_free_bytes{export=\"data\"} 1",
            "rdma_serve_cache_lookups_total{result=\"hit\"} 9",
            "rdma_serve_queue_pairs{state=\"err\"} 1",
            "rdma_serve_certificate_expiry_seconds{} 2000000000.0",
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
        }
        let text = metrics.text(&Levels::default());
        assert!(!text.contains("mlx5_0") && !text.contains("export=\"data\""), "{text}");
    }

    #[test]
    fn a_name_with_a_quote_does_not_end_its_label() {
        let mut levels = Levels::sample();
        levels.exports[0].name = "a\"b\\c\nd".into();
        levels.ports[0].device = "e\"f".into();
        let text = ServeMetrics::new("1").text(&levels);
        for line in [
            r#"rdma_serve_export_free_bytes{export="a\"b\\c\nd"} 1"#,
            r#"rdma_serve_export_size_bytes{export="a\"b\\c\nd"} 2"#,
            r#"rdma_serve_port_active{device="e\"f",port="1"} 1"#,
            r#"rdma_serve_port_packets_total{device="e\"f",port="1",direction="sent"} 4"#,
            r#"rdma_serve_port_errors_total{device="e\"f",port="1",error="link_downed"} 1"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn a_port_that_is_down_has_no_rate() {
        let mut levels = Levels::sample();
        levels.ports[0].active = false;
        let text = ServeMetrics::new("1").text(&levels);
        assert!(text.contains("port_active{device=\"mlx5_0\",port=\"1\"} 0"), "{text}");
        assert!(!text.contains("port_rate_bytes_per_second{"), "{text}");
    }
}
