//! A headless Chromium, driven over its own pipe: no driver and no web socket
//! between. Owns the process and a profile folder, and ends both. Every answer has
//! a deadline; console messages and requests are kept for the test to look at.

use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;
use verbatim_tests::process::{Text, wait_for};

/// How long the browser may take for one answer; a busy machine starts it slowly.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long the page may take to show something.
const SHOW_MAX: Duration = Duration::from_secs(30);

pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// What the page complained of.
    pub complaints: Vec<String>,
    /// What it asked for.
    pub requests: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it with an empty page.
    pub fn start() -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let pipes = ["to", "from"].map(|name| profile.path().join(name));
        let made = Command::new("mkfifo").args(&pipes).status().expect("mkfifo runs");
        assert!(made.success(), "no pipes");
        let script = "exec chromium --headless --no-sandbox --disable-gpu --no-first-run \
                      --disable-dev-shm-usage --remote-debugging-pipe --user-data-dir=\"$1\" \
                      about:blank 3<\"$2\" 4>\"$3\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(profile.path().join("profile"))
            .args(&pipes)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell runs");
        let to = OpenOptions::new().write(true).open(&pipes[0]).expect("a pipe");
        let answers = BufReader::new(File::open(&pipes[1]).expect("a pipe"));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for answer in answers.split(0).map_while(Result::ok) {
                let answer = serde_json::from_slice(&answer).expect("the browser speaks JSON");
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let (complaints, requests) = (Vec::new(), Vec::new());
        let mut browser = Self {
            child,
            to,
            from,
            next: 1,
            session: None,
            complaints,
            requests,
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.ask("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Network", "Page"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Has a window of this size.
    pub fn size(&mut self, width: u32, height: u32) {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Prefers light or dark pages.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.ask("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    pub fn open(&mut self, url: &str) {
        self.ask("Page.navigate", json!({ "url": url }));
    }

    /// What an expression is on the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.ask("Runtime.evaluate", asked)["result"]["value"].clone()
    }

    /// Waits until an expression is true on the page.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, expression: &str) {
        wait_for(what, SHOW_MAX, || {
            std::thread::sleep(Duration::from_millis(100));
            let value = self.value(expression);
            if value == true {
                return Ok(());
            }
            let shown = self.value("document.body.innerText");
            let shown = shown.as_str().unwrap_or("no text").to_owned();
            let complaints = &self.complaints;
            Err(Text(format!(
                "{expression} is {value}; the page complained of {complaints:?} and shows:\n{shown}"
            )))
        });
    }

    /// Waits until the page shows these words.
    #[track_caller]
    pub fn wait_for_text(&mut self, words: &str) {
        let words = serde_json::to_string(words).expect("text");
        let what = format!("the page shows {words}");
        self.wait_until(&what, &format!("document.body.innerText.includes({words})"));
    }

    /// A picture of what is there, as base64 of a PNG.
    pub fn picture(&mut self) -> String {
        let picture = self.ask("Page.captureScreenshot", json!({ "format": "png" }));
        picture["data"].as_str().expect("a picture").to_owned()
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let answer = self.from.recv_timeout(ANSWER_MAX);
            let answer = answer.unwrap_or_else(|error| panic!("no answer to {method}: {error}"));
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.heard(&answer);
        }
    }

    fn heard(&mut self, event: &Value) {
        let what = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.complaints.push(what.to_string()),
            "Runtime.consoleAPICalled" if what["type"] != "log" => {
                self.complaints.push(what.to_string());
            }
            "Log.entryAdded" => self.complaints.push(what["entry"].to_string()),
            "Network.requestWillBeSent" => {
                let url = what["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
