//! A headless Chromium, driven through chromedriver in WebDriver's words.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{Answer, Http, eventually};

/// The key of an element's id in WebDriver's answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Browsers are heavy: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A browser with one window; closed when dropped, and also when this process ends in another way.
pub(crate) struct Browser {
    webdriver: Http,
    session: String,
    /// Ends the driver, and with it the browser, when its input closes.
    watchdog: Child,
    driver: Child,
    _turn: MutexGuard<'static, ()>,
}

/// The driver, and where it listens; `None` if it ended before it did.
fn start_driver(program: &Path) -> Option<(Child, Http)> {
    let mut driver = Command::new(program).arg("--port=0").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let port = lines.find_map(|line| {
        let line = line.unwrap();
        line.rsplit_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
    });
    let Some(port) = port else {
        driver.wait().unwrap();
        return None;
    };
    // Whatever else it prints is read, so that it never waits for a reader.
    std::thread::spawn(move || lines.for_each(drop));
    Some((driver, Http(SocketAddr::from(([127, 0, 0, 1], port)))))
}

impl Browser {
    /// A window of this size. `None`, and a word, where there is no browser.
    pub(crate) fn open(size: (u32, u32), has_script: bool) -> Option<Browser> {
        let found = |names: &[&str]| names.iter().find_map(|it| on_path(it));
        let browser = found(&["chromium", "chromium-browser", "google-chrome"]);
        let (Some(browser), Some(driver)) = (browser, found(&["chromedriver"])) else {
            println!("skipped: there is no chromium with its chromedriver on the PATH");
            return None;
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // It takes a port over IPv4 and then the same over IPv6, and ends if another has that.
        let started = (0..5).find_map(|_| start_driver(&driver));
        let (driver, webdriver) = started.expect("the driver names a port");
        let watchdog = Command::new("sh")
            .args(["-c", r#"read -r _; kill "$1""#, "watchdog", &driver.id().to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut browser_options = json!({
            "binary": browser,
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                format!("--window-size={},{}", size.0, size.1),
            ],
        });
        if !has_script {
            let setting = "profile.managed_default_content_settings.javascript";
            browser_options["prefs"] = json!({setting: 2});
        }
        let mut it = Browser { webdriver, session: String::new(), watchdog, driver, _turn: turn };
        let wanted = json!({"capabilities": {"alwaysMatch": {
            // Of authorities that tests made.
            "acceptInsecureCerts": true,
            "goog:chromeOptions": browser_options,
        }}});
        let started = it.ask("POST", "/session", Some(wanted));
        it.session = format!("/session/{}", started["sessionId"].as_str().unwrap());
        Some(it)
    }

    /// Opens a page and waits until it is there.
    pub(crate) fn go(&self, server: &Http, path: &str) {
        let url = format!("http://{}{path}", server.0);
        self.ask("POST", &format!("{}/url", self.session), Some(json!({ "url": url })));
    }

    /// The same of a server whose ports encrypt.
    pub(crate) fn go_encrypted(&self, server: &Http, path: &str) {
        let url = format!("https://{}{path}", server.0);
        self.ask("POST", &format!("{}/url", self.session), Some(json!({ "url": url })));
    }

    /// Shows pages as a screen of this size does, in dark colours or not. Windows have a least width,
    /// screens have none.
    pub(crate) fn screen(&self, size: (u32, u32), is_dark: bool) {
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        for (command, params) in [
            (
                "Emulation.setDeviceMetricsOverride",
                json!({"width": size.0, "height": size.1, "deviceScaleFactor": 1, "mobile": true}),
            ),
            ("Emulation.setEmulatedMedia", json!({"features": [feature]})),
        ] {
            let body = json!({"cmd": command, "params": params});
            self.ask("POST", &format!("{}/goog/cdp/execute", self.session), Some(body));
        }
    }

    /// What a function's body returns in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.ask("POST", &format!("{}/execute/sync", self.session), Some(body))
    }

    /// What an element says, or nothing if it is not shown.
    pub(crate) fn text(&self, selector: &str) -> String {
        let found = self.element(selector);
        let text = self.ask("GET", &format!("{}/element/{found}/text", self.session), None);
        text.as_str().unwrap().to_owned()
    }

    /// Can it be seen?
    pub(crate) fn shows(&self, selector: &str) -> bool {
        let found = self.element(selector);
        self.ask("GET", &format!("{}/element/{found}/displayed", self.session), None) == json!(true)
    }

    /// Clicks in the middle of an element.
    pub(crate) fn click(&self, selector: &str) {
        let found = self.element(selector);
        self.ask("POST", &format!("{}/element/{found}/click", self.session), Some(json!({})));
    }

    /// Presses keys where the focus is.
    pub(crate) fn press(&self, selector: &str, keys: &str) {
        let found = self.element(selector);
        let body = json!({ "text": keys });
        self.ask("POST", &format!("{}/element/{found}/value", self.session), Some(body));
    }

    /// Waits until an element says this; the page may be read anew meanwhile.
    pub(crate) fn says(&self, selector: &str, text: &str) {
        self.says_of(selector, "it.textContent.trim()", &json!(text));
    }

    /// Waits until an expression about an element, `it`, has this value.
    pub(crate) fn says_of(&self, selector: &str, expression: &str, value: &Value) {
        let script = format!(
            "const it = document.querySelector({}); return it && {expression}",
            json!(selector)
        );
        let body = json!({"script": script, "args": []});
        let path = format!("{}/execute/sync", self.session);
        let what = format!("{expression} of {selector} to be {value}");
        eventually(&what, || {
            let said = self.answer("POST", &path, Some(body.clone())).json()["value"].take();
            (said == *value).then_some(())
        });
    }

    fn element(&self, selector: &str) -> String {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.ask("POST", &format!("{}/element", self.session), Some(body));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("no {selector}: {found}")).to_owned()
    }

    fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let answer = self.answer(method, path, body);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        answer.json()["value"].take()
    }

    fn answer(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let body = body.map(|it| it.to_string()).unwrap_or_default();
        // The driver answers nobody who calls it by another name.
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.webdriver.send_raw(&[head.as_bytes(), body.as_bytes()])
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.ask("DELETE", &self.session, None);
        }
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
        let _ = self.driver.wait();
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|it| it.join(name)).find(|it| it.is_file())
}
