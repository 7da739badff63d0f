//! A real Prometheus that reads a server's metrics, and the tool that checks them.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::Value;

use super::{Http, PATIENCE, Server, eventually, until};

/// A running Prometheus; killed when dropped, and also when this process ends in any other way.
pub(crate) struct Prometheus {
    http: Http,
    child: Child,
    /// Kills it when its input closes.
    watchdog: Child,
}

/// Is this program there? Says so when it is not, and that the test ends here.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        println!("skipped: there is no `{program}` on the PATH");
    }
    found
}

impl Prometheus {
    /// Reads the server's metrics as the config of the pipeline says, but more often.
    pub(crate) fn reads(server: &Server) -> Prometheus {
        let config = fs::read_to_string("pipelines/monitoring/prometheus.yml").unwrap();
        let changed = config
            .replace("localhost:8002", &server.metrics.0.to_string())
            .replace("scrape_interval: 5s", "scrape_interval: 200ms");
        assert!(changed.contains("200ms") && !changed.contains("8002"), "{changed}");
        let (path, data) = (server.repository.beside("p.yml"), server.repository.beside("data"));
        fs::write(&path, changed).unwrap();
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let watchdog = Command::new("sh")
            .args(["-c", r#"read -r _; kill -KILL "$1""#, "watchdog", &child.id().to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, address) = mpsc::channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let listens = line.contains("Listening on");
                let address = line.split_once("address=").filter(|_| listens);
                if let Some(address) = address.and_then(|it| it.1.split(' ').next()?.parse().ok()) {
                    let _ = told.send(address);
                }
            }
        });
        let http = Http(address.recv_timeout(PATIENCE).expect("Prometheus says where it listens"));
        until("Prometheus to be ready", || http.get("/-/ready").status == 200);
        Prometheus { http, child, watchdog }
    }

    /// The series a query finds, each with its labels and its value.
    pub(crate) fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let escaped: String = query
            .bytes()
            .map(|it| match it {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => (it as char).to_string(),
                _ => format!("%{it:02X}"),
            })
            .collect();
        let answer = self.http.get(&format!("/api/v1/query?query={escaped}"));
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        let mut body = answer.json();
        let result = body["data"]["result"].as_array_mut().unwrap();
        let series = |it: &mut Value| {
            let value = it["value"][1].as_str().unwrap().parse().unwrap();
            (it["metric"].take(), value)
        };
        result.iter_mut().map(series).collect()
    }

    /// Waits until a query finds something.
    pub(crate) fn finds(&self, query: &str) -> Vec<(Value, f64)> {
        eventually(query, || Some(self.query(query)).filter(|it| !it.is_empty()))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `promtool check metrics` has to say about a page; a page it cannot read is a failure.
#[track_caller]
pub(crate) fn lints(page: &str) -> Vec<String> {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    // 3: names that are not as they should be.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{said}\nof\n{page}");
    said.lines().filter(|it| !it.is_empty()).map(str::to_owned).collect()
}
