//! Fetches and prints the status of a running server over HTTP, for sites without
//! Prometheus. One request with a deadline; text of the server is sanitised before it
//! is printed.

use crate::flags::STATUS_DEFAULT;
use crate::shared::exit::{Exit, print_error};
use crate::shared::sanitize::clean;
use indicatif::BinaryBytes;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use verbatim_usage::out;

/// The deadline of the whole request.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The longest status that is read.
const STATUS_BYTES_MAX: u64 = 64 << 20;

/// Prints the status of a server.
pub fn print(server: &str, json: bool) -> ExitCode {
    let address = address(server);
    match fetch(&address) {
        Ok(status) if json => out!("{status}"),
        Ok(status) => out!("{}", text(&status).trim_end()),
        Err(cause) => {
            let error = format!("cannot get the status of {address}: {cause}");
            let hint = "give where it shows metrics: it logs \"metrics and page\" when it starts, \
                        and only to its own machine unless metrics.listen says otherwise";
            return print_error(&error, Some(hint.into()), Exit::Connect, json);
        }
    }
    crate::checked_exit(0, json)
}

/// Adds the default port if the user named none.
fn address(server: &str) -> String {
    let (_, port) = STATUS_DEFAULT.rsplit_once(':').unwrap_or_default();
    let has_port = match server.rsplit_once(':') {
        Some((host, port)) => {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        }
        None => false,
    };
    match has_port {
        true => server.to_owned(),
        false if server.contains(':') && !server.starts_with('[') => format!("[{server}]:{port}"),
        false => format!("{server}:{port}"),
    }
}

/// Resolves a name on a thread, which is abandoned if the resolver hangs.
fn resolve(name: &str) -> Result<SocketAddr, String> {
    let (done, answer) = channel();
    let query = name.to_owned();
    std::thread::spawn(move || {
        // The receiver may have timed out.
        let _ = done.send(query.to_socket_addrs().map(|mut found| found.next()));
    });
    let answer = answer.recv_timeout(TIME_MAX).map_err(|_| "the resolver does not answer")?;
    answer.map_err(|error| error.to_string())?.ok_or_else(|| "the name has no address".into())
}

fn fetch(address: &str) -> Result<Value, String> {
    let begin = Instant::now();
    let plain = |error: std::io::Error| error.to_string();
    let resolved = resolve(address)?;
    let mut stream = TcpStream::connect_timeout(&resolved, TIME_MAX).map_err(plain)?;
    let request =
        format!("GET /api/v1/status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.set_write_timeout(Some(TIME_MAX)).map_err(plain)?;
    stream.write_all(request.as_bytes()).map_err(plain)?;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        // The deadline also covers a server that sends a byte now and then.
        let left = TIME_MAX.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
        let left = left.ok_or_else(|| format!("no answer in {} s", TIME_MAX.as_secs()))?;
        stream.set_read_timeout(Some(left)).map_err(plain)?;
        match stream.read(&mut part).map_err(plain)? {
            0 => break,
            count if (bytes.len() + count) as u64 > STATUS_BYTES_MAX => {
                return Err("the answer is too long".into());
            }
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("the reply is not HTTP")?;
    let line = head.lines().next().unwrap_or_default();
    if !line.contains(" 200") {
        return Err(format!("it answers {}", clean(line)));
    }
    serde_json::from_str(body).map_err(|error| format!("the reply is not a status: {error}"))
}

/// The status as text for people.
fn text(status: &Value) -> String {
    let of = |value: &Value, key: &str| clean(value[key].as_str().unwrap_or_default());
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let list = |key: &str| status[key].as_array().map_or(&[][..], Vec::as_slice).iter();
    let up = status["now"].as_f64().unwrap_or(0.0) - status["started"].as_f64().unwrap_or(0.0);
    let mut text = format!(
        "rdma-serve {} at {}: {}, up for {up:.0} s\n",
        of(status, "version"),
        of(status, "address"),
        of(status, "state"),
    );
    if let Some(reason) = status["reason"].as_str() {
        text.push_str(&format!("  {}\n", clean(reason)));
    }
    match status["rdma"]["reason"].as_str() {
        Some(reason) => {
            let hint = of(&status["rdma"], "hint");
            text.push_str(&format!("no RDMA: {}\n  hint: {hint}\n", clean(reason)));
        }
        None => text.push_str("RDMA is offered\n"),
    }
    for export in list("exports") {
        let free = BinaryBytes(number(export, "free_bytes"));
        let (name, mode) = (of(export, "name"), of(export, "mode"));
        text.push_str(&format!("export {name} ({mode}): {free} free\n"));
    }
    for device in list("devices") {
        let (name, port) = (of(device, "device"), number(device, "port"));
        let errors = number(device, "errors");
        text.push_str(&format!("port {name}/{port}: {}, {errors} errors\n", of(device, "state")));
    }
    for session in list("sessions") {
        let (who, peer) = (of(session, "who"), of(session, "peer"));
        let read = BinaryBytes(number(session, "read_bytes"));
        let written = BinaryBytes(number(session, "written_bytes"));
        let transport = of(session, "transport");
        text.push_str(&format!(
            "client {who} from {peer}: {read} read, {written} written, {transport}\n"
        ));
    }
    for finding in list("findings") {
        let (severity, about) = (of(finding, "severity").to_uppercase(), of(finding, "about"));
        text.push_str(&format!("{severity} {about}: {}\n", of(finding, "is")));
        text.push_str(&format!("  fix: {}\n", of(finding, "fix")));
    }
    for error in list("errors").take(ERRORS_SHOWN) {
        text.push_str(&format!("error: {}\n", of(error, "text")));
        if let Some(hint) = error["hint"].as_str() {
            text.push_str(&format!("  hint: {}\n", clean(hint)));
        }
    }
    text
}

/// The most recent errors that are shown.
const ERRORS_SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_gets_the_default_port() {
        assert_eq!(address("node7"), "node7:9469");
        assert_eq!(address("node7:80"), "node7:80");
        assert_eq!(address("fe80::1"), "[fe80::1]:9469");
        assert_eq!(address("[fe80::1]:80"), "[fe80::1]:80");
    }

    #[test]
    fn text_of_a_server_cannot_move_the_cursor() {
        let status = serde_json::json!({
            "state": "serving\u{1b}[2J", "exports": [{ "name": "a\nb", "mode": "ro" }],
        });
        let text = text(&status);
        assert!(!text.contains('\u{1b}') && !text.contains("a\nb"), "{text}");
    }
}
