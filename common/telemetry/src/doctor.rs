//! The metrics of a machine that `rdma-doctor` looked at: for a file that
//! node_exporter's textfile collector reads, on nodes that run no server. What
//! ports count has the names that it has at a server, with another beginning.

use crate::run::escaped;
use crate::serve::PortLevels;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What the doctor saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis<'a> {
    /// When it looked, in seconds since 1970.
    pub time: f64,
    /// How it ended: 0 well, 1 limited, 2 without RDMA.
    pub exit: u8,
    /// What it found: check, severity, and what it is about.
    pub findings: Vec<(&'a str, &'a str, &'a str)>,
    /// What ports count.
    pub ports: Vec<&'a PortLevels>,
}

/// Writes it in the text format of Prometheus.
pub fn text(diagnosis: &Diagnosis<'_>) -> String {
    let mut page = Page::default();
    page.family("exit_code", "gauge", "0 all well, 1 something limits RDMA, 2 it cannot work");
    page.row("", f64::from(diagnosis.exit));
    page.family("time_seconds", "gauge", "When the doctor looked, since 1970");
    page.row("", diagnosis.time);
    page.family("finding", "gauge", "1 for everything that is not as it should be");
    // Several may be of one check about one thing; a series is told once.
    for (check, severity, about) in diagnosis.findings.iter().collect::<BTreeSet<_>>() {
        let about = escaped(about);
        page.row(&format!("check=\"{check}\",severity=\"{severity}\",about=\"{about}\""), 1.0);
    }
    let ports = &diagnosis.ports;
    let of =
        |port: &PortLevels| format!("device=\"{}\",port=\"{}\"", escaped(&port.device), port.port);
    page.family("port_active", "gauge", "1 for a port that is up");
    for port in ports {
        page.row(&of(port), f64::from(u8::from(port.active)));
    }
    page.family("port_rate_bytes_per_second", "gauge", "What a port's cable carries, if it is up");
    for port in ports.iter().filter(|port| port.active) {
        page.row(&of(port), port.bytes_per_second);
    }
    type Pair = fn(&PortLevels) -> Option<(u64, u64)>;
    let pairs: [(&str, &str, &str, [&str; 2], Pair); 3] = [
        ("port_bytes_total", "Bytes of a port", "direction", ["received", "sent"], |it| it.bytes),
        ("port_packets_total", "Packets of a port", "direction", ["received", "sent"], |it| {
            it.packets
        }),
        (
            "port_requests_total",
            "One-sided requests served",
            "operation",
            ["read", "write"],
            |it| it.requests,
        ),
    ];
    for (name, help, label, values, pair) in pairs {
        page.family(name, "counter", help);
        for port in ports {
            let Some((first, second)) = pair(port) else { continue };
            for (value, count) in values.iter().zip([first, second]) {
                page.row(&format!("{},{label}=\"{value}\"", of(port)), count as f64);
            }
        }
    }
    page.family("port_errors_total", "counter", "Errors of a port, by the counter's name");
    for port in ports {
        for (error, count) in &port.errors {
            page.row(&format!("{},error=\"{}\"", of(port), escaped(error)), *count as f64);
        }
    }
    page.text
}

/// Text that is being written; a family without rows is left out.
#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
    /// What comes before the first row.
    head: Option<String>,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let head = format!("# HELP rdma_doctor_{name} {help}\n# TYPE rdma_doctor_{name} {kind}\n");
        self.head = Some(head);
    }

    fn row(&mut self, labels: &str, value: f64) {
        self.text.push_str(&self.head.take().unwrap_or_default());
        let _ = match labels {
            "" => writeln!(self.text, "rdma_doctor_{} {value}", self.name),
            labels => writeln!(self.text, "rdma_doctor_{}{{{labels}}} {value}", self.name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::Levels;

    #[test]
    fn findings_and_counters_are_told_and_empty_families_are_not() {
        let levels = Levels::sample();
        let mtu = ("mtu", "limits", "mlx5_0/1\n");
        let findings = vec![mtu, ("counters", "limits", "mlx5_0/1"), mtu];
        let ports = levels.ports.iter().collect();
        let text = text(&Diagnosis { time: 2.5, exit: 1, findings, ports });
        for line in [
            "rdma_doctor_exit_code 1",
            "rdma_doctor_finding{check=\"mtu\",severity=\"limits\",about=\"mlx5_0/1\\n\"} 1",
            "rdma_doctor_port_bytes_total{device=\"mlx5_0\",port=\"1\",direction=\"sent\"} 7",
            "rdma_doctor_port_errors_total{device=\"mlx5_0\",port=\"1\",error=\"link_downed\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
        }
        assert_eq!(text.matches("check=\"mtu\"").count(), 1, "a series is told once: {text}");
        let down = PortLevels { active: false, ..levels.ports[0].clone() };
        let down = super::text(&Diagnosis { ports: vec![&down], ..Diagnosis::default() });
        assert!(down.contains("port_active{") && !down.contains("port_rate_"), "{down}");
        let empty = super::text(&Diagnosis::default());
        assert!(!empty.contains("port_") && !empty.contains("finding"), "{empty}");
    }
}
