//! The report of a server probe, as text and as JSON: the attempts, a table with a bar
//! for each measurement of a transport, and the verdict.

use crate::shared::sanitize::clean;
use serde_json::{Value, json};
use std::fmt::Write;
use verbatim_client::probe::verdict::verdict;
use verbatim_client::probe::{Examination, Latency, Measured, Rate};

/// The columns of the longest bar.
const BAR_COLUMNS: usize = 24;

/// The probe as text for people.
pub fn text(found: &Examination) -> String {
    let mut text = format!("\nway to {}\n", clean(&found.peer));
    if let Some(route) = &found.route {
        let names: Vec<_> = route.addresses.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "  name   {} in {}",
            names.join(", "),
            time(route.resolved_in.as_nanos())
        );
        let local = route.local.map_or("an unknown address".into(), |it| it.to_string());
        let by = route.netdev.as_ref().map_or(String::new(), |it| format!(" by {it}"));
        let packets = found.packets.map(|it| format!(", packets of {} bytes", it.path));
        let _ = writeln!(text, "  route  from {local}{by}{}", packets.unwrap_or_default());
    }
    if let Some(handshake) = &found.handshake {
        let agent = clean(&handshake.agent);
        let opened = time(handshake.opened_in.as_nanos());
        let _ =
            writeln!(text, "  door   {agent} at {}, TLS and key in {opened}", handshake.address);
        let _ = writeln!(text, "         {}", handshake.fingerprint);
    }
    for tried in &found.tried {
        match &tried.outcome {
            Ok(measured) => text.push_str(&table(measured)),
            Err(trouble) => {
                let _ = writeln!(text, "\n{}: {}", tried.transport, clean(&trouble.cause));
            }
        }
    }
    match verdict(found) {
        Some(said) => {
            let _ = writeln!(
                text,
                "\na copy from there would move over {}, limited by the {}: {}",
                said.path,
                said.limited_by,
                rate(said.bytes_per_second)
            );
        }
        None => text.push_str("\nnothing can be copied from there\n"),
    }
    let own = found.own;
    if own.hash > 0.0 {
        let disk = match &found.no_disk {
            Some(cause) => format!("; {cause}"),
            None if own.disk > 0.0 => format!(", disk {}", rate(own.disk)),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "this machine by itself: hash {} and memory {} a core, {} cores{disk}",
            rate(own.hash),
            rate(own.memory),
            own.cores
        );
    }
    text
}

/// A transport's latencies, then its rates with a bar each.
fn table(measured: &Measured) -> String {
    let mut text = format!("\n{}\n", measured.carrier);
    let _ = writeln!(text, "  latency {:>10} {:>10} {:>10} {:>10}", "p50", "p90", "p99", "max");
    for Latency { way, p50, p90, p99, max, .. } in &measured.latencies {
        let [p50, p90, p99, max] = [p50, p90, p99, max].map(|nanos| time(u128::from(*nanos)));
        let _ = writeln!(text, "  {:<7} {p50:>10} {p90:>10} {p99:>10} {max:>10}", way.word());
    }
    let top = measured.rates.iter().map(|it| it.bytes_per_second).fold(1.0, f64::max);
    for Rate { way, bytes, links, bytes_per_second } in &measured.rates {
        let columns = (bytes_per_second / top * BAR_COLUMNS as f64).round() as usize;
        let bar = "#".repeat(columns.clamp(1, BAR_COLUMNS));
        let size = format!("{} KiB x {links}", bytes >> 10);
        let carried = rate(*bytes_per_second);
        let _ = writeln!(text, "  {:<7} {size:<12} {bar:<BAR_COLUMNS$} {carried:>10}", way.word());
    }
    text
}

fn time(nanos: u128) -> String {
    match nanos {
        0..10_000 => format!("{:.2} us", nanos as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} us", nanos as f64 / 1e3),
        _ => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        slow if slow < 1e8 => format!("{:.1} MB/s", slow / 1e6),
        fast => format!("{:.2} GB/s", fast / 1e9),
    }
}

/// The probe as JSON for scripts; times are in seconds.
pub fn json(found: &Examination) -> Value {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let latency = |it: &Latency| {
        json!({
            "operation": it.way.word(), "count": it.count, "p50": seconds(it.p50),
            "p90": seconds(it.p90), "p99": seconds(it.p99), "max": seconds(it.max),
        })
    };
    let rate = |it: &Rate| {
        json!({
            "operation": it.way.word(), "bytes": it.bytes, "links": it.links,
            "bytes_per_second": it.bytes_per_second,
        })
    };
    let tried = found.tried.iter().map(|tried| match &tried.outcome {
        Ok(measured) => json!({
            "transport": tried.transport, "carrier": measured.carrier,
            "latency_seconds": measured.latencies.iter().map(latency).collect::<Vec<_>>(),
            "rates": measured.rates.iter().map(rate).collect::<Vec<_>>(),
        }),
        Err(trouble) => json!({
            "transport": tried.transport, "step": trouble.step, "error": trouble.cause,
            "hint": trouble.hint,
        }),
    });
    let route = found.route.as_ref();
    let handshake = found.handshake.as_ref();
    let verdict = verdict(found);
    json!({
        "peer": found.peer,
        "addresses": route.map(|it| it.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "resolve_seconds": route.map(|it| it.resolved_in.as_secs_f64()),
        "local": route.and_then(|it| it.local).map(|it| it.to_string()),
        "netdev": route.and_then(|it| it.netdev.clone()),
        "packet_bytes": found.packets.map(|it| it.path),
        "door_seconds": handshake.map(|it| it.opened_in.as_secs_f64()),
        "fingerprint": handshake.map(|it| it.fingerprint.clone()),
        "error": found.trouble.as_ref().map(|it| it.cause.clone()),
        "transports": tried.collect::<Vec<_>>(),
        "verdict": verdict.map(|it| json!({
            "path": it.path, "limited_by": it.limited_by, "bytes_per_second": it.bytes_per_second,
        })),
        "hash_bytes_per_second": found.own.hash,
        "memory_bytes_per_second": found.own.memory,
        "disk_bytes_per_second": found.own.disk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_client::probe::Operation;

    #[test]
    fn times_and_rates_have_a_fitting_unit() {
        assert_eq!(
            (time(1_234), time(45_600), time(7_890_000)),
            ("1.23 us".into(), "46 us".into(), "7.9 ms".into())
        );
        assert_eq!((rate(45e6), rate(12.3e9)), ("45.0 MB/s".into(), "12.30 GB/s".into()));
    }

    #[test]
    fn a_table_has_a_row_and_a_bar_for_each_measurement() {
        let rate = |way, links, gigabytes: f64| Rate {
            way,
            bytes: 1 << 20,
            links,
            bytes_per_second: gigabytes * 1e9,
        };
        let latency = Latency {
            way: Operation::Read,
            count: 9,
            p50: 2_000,
            p90: 3_000,
            p99: 4_000,
            max: 50_000,
        };
        let rates = vec![
            rate(Operation::Read, 1, 6.0),
            rate(Operation::Read, 4, 12.0),
            rate(Operation::Write, 1, 0.01),
        ];
        let measured =
            Measured { carrier: "verbs mlx5_0/1".into(), latencies: vec![latency], rates };
        let expected = "
verbs mlx5_0/1
  latency        p50        p90        p99        max
  read       2.00 us    3.00 us    4.00 us      50 us
  read    1024 KiB x 1 ############              6.00 GB/s
  read    1024 KiB x 4 ######################## 12.00 GB/s
  write   1024 KiB x 1 #                         10.0 MB/s
";
        assert_eq!(table(&measured), expected);
    }
}
