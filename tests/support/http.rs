//! HTTP/1.1 by hand, so that tests can send what no library would.

use std::{
    fmt::Display,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use serde_json::{Value, json};

use super::PATIENCE;

/// One listener of a server; every request has its own connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http(pub(crate) SocketAddr);

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Http {
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: impl Display) -> Answer {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    /// Asks a model for an inference.
    pub(crate) fn infer(&self, model: &str, request: impl Display) -> Answer {
        self.post(&format!("/v2/models/{model}/infer"), request)
    }

    /// JSON and tensors behind it.
    pub(crate) fn infer_binary(&self, model: &str, request: &Value, tensors: &[&[u8]]) -> Answer {
        self.send_raw(&[&binary(model, request, tensors)])
    }

    /// The same, sent and not waited for.
    pub(crate) fn start_binary(
        &self,
        model: &str,
        request: &Value,
        tensors: &[&[u8]],
    ) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&binary(model, request, tensors)).unwrap();
        stream
    }

    /// One request with its length announced.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut head = head(method, path, headers);
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.send_raw(&[head.as_bytes(), body])
    }

    /// One request in chunks.
    pub(crate) fn send_chunks<'a>(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        chunks: impl IntoIterator<Item = &'a [u8]>,
    ) -> Answer {
        let mut text = head("POST", path, headers).into_bytes();
        text.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        for chunk in chunks {
            text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            text.extend_from_slice(chunk);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"0\r\n\r\n");
        self.send_raw(&[&text])
    }

    /// These bytes and nothing else.
    #[track_caller]
    pub(crate) fn send_raw(&self, parts: &[&[u8]]) -> Answer {
        self.send_or_be_cut(parts).expect("the server answers in time")
    }

    /// The same, where the server may close the connection before its answer is read.
    pub(crate) fn send_or_be_cut(&self, parts: &[&[u8]]) -> Option<Answer> {
        let stream = self.connect();
        let answer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            // Read beside writing: a server may refuse before it has read all, and close.
            scope.spawn(move || {
                for part in parts {
                    if (&stream).write_all(part).is_err() {
                        return;
                    }
                }
            });
            read(BufReader::new(answer))
        })
    }

    /// A connection with this request on its way; dropping it is a client that goes away.
    pub(crate) fn start(&self, model: &str, request: &Value) -> TcpStream {
        self.start_at(&format!("/v2/models/{model}/infer"), request)
    }

    /// The same for any path.
    pub(crate) fn start_at(&self, path: &str, request: &Value) -> TcpStream {
        let body = request.to_string();
        let mut head = head("POST", path, &[]);
        head += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let stream = self.connect();
        (&stream).write_all(head.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.0).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Reads the answer to something started.
pub(crate) fn finish(stream: TcpStream) -> Answer {
    read(BufReader::new(stream)).expect("the server answers in time")
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|it| panic!("{it} in {}: {}", self.status, self.text()))
    }

    /// The text of an error body, which holds nothing else but where in an ensemble it happened.
    pub(crate) fn error(&self) -> String {
        let body = self.json();
        let is_known = |key: &String| key == "error" || key == "troupe";
        let object = body.as_object().filter(|it| it.keys().all(is_known));
        let text = object.and_then(|it| it.get("error")).and_then(Value::as_str);
        text.unwrap_or_else(|| panic!("{} is no error: {body}", self.status)).to_owned()
    }

    /// Where in an ensemble an error happened.
    #[track_caller]
    pub(crate) fn provenance(&self) -> Value {
        let body = self.json();
        body.get("troupe").unwrap_or_else(|| panic!("no place in {body}")).clone()
    }

    /// The objects of server-sent events.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let text = self.text();
        let events = text.split_terminator("\n\n");
        let data = events.map(|it| it.strip_prefix("data: ").expect("an event has data"));
        data.map(|it| serde_json::from_str(it).expect("the data is JSON")).collect()
    }

    /// The answer, if it is a good one.
    #[track_caller]
    pub(crate) fn ok(&self) -> &Answer {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }

    /// An answer with this status and an error that contains this text.
    #[track_caller]
    pub(crate) fn refuses(&self, status: u16, text: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        let error = self.error();
        assert!(!error.is_empty() && error.contains(text), "expected `{text}` in `{error}`");
    }

    /// The data of an output that came as JSON.
    #[track_caller]
    pub(crate) fn output(&self, name: &str) -> Value {
        let body = self.ok().json();
        let outputs = body["outputs"].as_array().expect("an answer has outputs");
        let found = outputs.iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("no output {name} in {body}"))["data"].clone()
    }

    /// The numbers of an output of one dimension.
    #[track_caller]
    pub(crate) fn numbers(&self, name: &str) -> Vec<f64> {
        let data = self.output(name);
        data.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
    }

    /// The shape of an output.
    #[track_caller]
    pub(crate) fn shape(&self, name: &str) -> Value {
        let body = self.ok().json();
        let outputs = body["outputs"].as_array().expect("an answer has outputs");
        outputs.iter().find(|it| it["name"] == name).expect("the output is there")["shape"].clone()
    }

    /// The names of the outputs.
    #[track_caller]
    pub(crate) fn outputs(&self) -> Vec<String> {
        let body = self.ok().json();
        let outputs = body["outputs"].as_array().expect("an answer has outputs");
        outputs.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// An input as JSON has it.
pub(crate) fn input(name: &str, dtype: &str, shape: &[i64], data: impl Into<Value>) -> Value {
    json!({"name": name, "datatype": dtype, "shape": shape, "data": data.into()})
}

/// A request of FP32 inputs of one dimension, of these values.
pub(crate) fn floats(inputs: &[(&str, &[f32])]) -> Value {
    let inputs: Vec<Value> = inputs
        .iter()
        .map(|(name, data)| input(name, "FP32", &[data.len() as i64], data.to_vec()))
        .collect();
    json!({ "inputs": inputs })
}

/// The same with a batch dimension: rows of one element.
pub(crate) fn rows(inputs: &[(&str, &[f32])]) -> Value {
    let mut request = floats(inputs);
    for input in request["inputs"].as_array_mut().unwrap() {
        let rows = input["shape"][0].clone();
        input["shape"] = json!([rows, 1]);
    }
    request
}

/// JSON and tensors behind it, with the head of the request.
fn binary(model: &str, request: &Value, tensors: &[&[u8]]) -> Vec<u8> {
    let (json, tensors) = (request.to_string(), tensors.concat());
    let length = json.len().to_string();
    let path = format!("/v2/models/{model}/infer");
    let mut head = head("POST", &path, &[("Inference-Header-Content-Length", &length)]);
    head += &format!("Content-Length: {}\r\n\r\n{json}", json.len() + tensors.len());
    [head.as_bytes(), &tensors].concat()
}

fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += "Host: test\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head
}

/// `None` when the connection ends before an answer begins.
fn read(mut stream: impl BufRead) -> Option<Answer> {
    let mut line = String::new();
    if stream.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let status = line.split(' ').nth(1).and_then(|it| it.parse().ok());
    let status = status.unwrap_or_else(|| panic!("expected a status line, got {line:?}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut answer = Answer { status, headers, body: Vec::new() };
    if answer.header("transfer-encoding").is_some_and(|it| it.contains("chunked")) {
        read_chunks(stream, &mut answer.body);
    } else if let Some(length) = answer.header("content-length") {
        let length = length.parse().unwrap();
        let got = stream.take(length).read_to_end(&mut answer.body).unwrap();
        assert_eq!(got as u64, length, "the answer ends early");
    } else {
        stream.read_to_end(&mut answer.body).unwrap();
    }
    Some(answer)
}

fn read_chunks(mut stream: impl BufRead, body: &mut Vec<u8>) {
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let length = u64::from_str_radix(line.trim(), 16).expect("a chunk begins with its length");
        let got = (&mut stream).take(length).read_to_end(body).unwrap();
        assert_eq!(got as u64, length, "a chunk ends early");
        stream.read_line(&mut String::new()).unwrap();
        if length == 0 {
            return;
        }
    }
}
