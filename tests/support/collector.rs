//! A collector of OpenTelemetry: what the server sends over HTTP or gRPC, as trees of spans.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport};

use super::eventually;

/// Listens on two ports for as long as the tests run.
#[derive(Clone)]
pub(crate) struct Collector {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    got: Got,
}

#[derive(Clone, Default)]
struct Got(Arc<Mutex<Vec<Seen>>>);

/// A span as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) span: Span,
    /// Of the server.
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) scope: String,
    /// Of the request it came in, in lower case.
    pub(crate) headers: String,
}

/// The spans of one trace.
pub(crate) struct Tree(pub(crate) Vec<Seen>);

impl Collector {
    pub(crate) fn start() -> Collector {
        let got = Got::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = listener.local_addr().unwrap();
        let of_http = got.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let got = of_http.clone();
                thread::spawn(move || got.serve(stream.unwrap()));
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let grpc = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let of_grpc = got.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let service = TraceServiceServer::new(of_grpc);
                let incoming = TcpListenerStream::new(listener);
                let server = transport::Server::builder().add_service(service);
                server.serve_with_incoming(incoming).await.unwrap();
            });
        });
        Collector { http, grpc, got }
    }

    /// Flags of a server that sends everything here at once.
    pub(crate) fn flags(&self, more: &[&str]) -> Vec<String> {
        let url = format!("opentelemetry,url=http://{}/v1/traces", self.http);
        let own = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1", &url];
        let own = own.into_iter().chain(["opentelemetry,bsp_schedule_delay=5"]);
        own.chain(more.iter().copied()).map(|it| format!("--trace-config={it}")).collect()
    }

    /// Everything that came so far.
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.got.0.lock().unwrap().clone()
    }

    /// The trace a test has begun, once its request has come.
    pub(crate) fn tree(&self, trace_id: u128) -> Tree {
        eventually("a trace at the collector", || {
            let of_trace = |it: &Seen| it.span.trace_id == trace_id.to_be_bytes();
            let spans: Vec<Seen> = self.all().into_iter().filter(of_trace).collect();
            let is_whole = spans.iter().any(|it| it.span.name == "InferRequest");
            is_whole.then_some(Tree(spans))
        })
    }
}

/// A trace and the header that begins it.
pub(crate) fn new_trace() -> (u128, String) {
    let id = u128::from(troupe_base::trace::random()) << 64 | 1;
    (id, format!("00-{id:032x}-00000000000000c1-01"))
}

impl Got {
    fn push(&self, request: ExportTraceServiceRequest, headers: &str) {
        let mut seen = Vec::new();
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.unwrap_or_default();
            let resource = attributes(&resource.attributes);
            for of_scope in of_resource.scope_spans {
                let scope = of_scope.scope.unwrap_or_default().name;
                seen.extend(of_scope.spans.into_iter().map(|span| Seen {
                    span,
                    resource: resource.clone(),
                    scope: scope.clone(),
                    headers: headers.to_owned(),
                }));
            }
        }
        self.0.lock().unwrap().extend(seen);
    }

    /// The requests of one connection.
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if !reader.read_line(&mut head).is_ok_and(|it| it != 0) {
                    return;
                }
            }
            let head = head.to_ascii_lowercase();
            assert!(head.starts_with("post /v1/traces "), "{head}");
            let length = head.split_once("content-length: ").unwrap().1;
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            self.push(ExportTraceServiceRequest::decode(&*body).unwrap(), &head);
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\
                          Content-Length: 0\r\n\r\n";
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    }
}

#[tonic::async_trait]
impl TraceService for Got {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let headers = format!("{:?}", request.metadata());
        self.push(request.into_inner(), &headers);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Seen {
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        attributes(&self.span.attributes).remove(name)
    }

    /// Names of what happened, in the order of time.
    pub(crate) fn events(&self) -> Vec<&str> {
        let mut events: Vec<_> = self.span.events.iter().collect();
        events.sort_by_key(|it| it.time_unix_nano);
        events.into_iter().map(|it| it.name.as_str()).collect()
    }

    /// An attribute of an event.
    pub(crate) fn of_event(&self, event: &str, name: &str) -> Option<String> {
        let event = self.span.events.iter().find(|it| it.name == event)?;
        attributes(&event.attributes).remove(name)
    }
}

impl Tree {
    /// The one span of this name.
    #[track_caller]
    pub(crate) fn one(&self, name: &str) -> &Seen {
        let all = self.named(name);
        assert_eq!(all.len(), 1, "spans named {name} in {}", self.text());
        all[0]
    }

    /// All spans of this name, in the order they begin.
    pub(crate) fn named(&self, name: &str) -> Vec<&Seen> {
        let mut named: Vec<_> = self.0.iter().filter(|it| it.span.name == name).collect();
        named.sort_by_key(|it| it.span.start_time_unix_nano);
        named
    }

    /// What is right below a span, in the order they begin.
    pub(crate) fn below(&self, above: &Seen) -> Vec<&Seen> {
        let mut below: Vec<_> =
            self.0.iter().filter(|it| it.span.parent_span_id == above.span.span_id).collect();
        below.sort_by_key(|it| (it.span.start_time_unix_nano, it.span.end_time_unix_nano));
        below
    }

    /// Names of what is right below a span.
    pub(crate) fn names_below(&self, above: &Seen) -> Vec<&str> {
        self.below(above).into_iter().map(|it| it.span.name.as_str()).collect()
    }

    /// The one span of this name right below another.
    #[track_caller]
    pub(crate) fn child(&self, above: &Seen, name: &str) -> &Seen {
        let mut found = self.below(above).into_iter().filter(|it| it.span.name == name);
        let first = found.next().unwrap_or_else(|| panic!("no {name} in {}", self.text()));
        assert!(found.next().is_none(), "{name} more than once in {}", self.text());
        first
    }

    /// Every span has its parent here, but the root, and lies within it.
    #[track_caller]
    pub(crate) fn holds_together(&self) {
        for Seen { span, .. } in &self.0 {
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{}", self.text());
            if span.name == "InferRequest" {
                continue;
            }
            let above = self.0.iter().find(|it| it.span.span_id == span.parent_span_id);
            let above = above.unwrap_or_else(|| panic!("{} is alone: {}", span.name, self.text()));
            let is_inside = above.span.start_time_unix_nano <= span.start_time_unix_nano
                && span.end_time_unix_nano <= above.span.end_time_unix_nano;
            // An execution may have begun while its second request was still on its way.
            assert!(is_inside || span.name == "batch", "{}: {}", span.name, self.text());
        }
    }

    /// The tree with microseconds, for messages.
    pub(crate) fn text(&self) -> String {
        let begin = self.0.iter().map(|it| it.span.start_time_unix_nano).min().unwrap_or(0);
        let mut text = String::new();
        self.write(&[0, 0, 0, 0, 0, 0, 0, 0xc1], begin, (1, &mut text));
        let root = self.0.iter().filter(|it| it.span.parent_span_id.is_empty());
        root.for_each(|it| self.write(&it.span.parent_span_id, begin, (1, &mut text)));
        format!("{} spans:\n{text}", self.0.len())
    }

    fn write(&self, above: &[u8], begin: u64, (depth, text): (usize, &mut String)) {
        for Seen { span, .. } in self.0.iter().filter(|it| it.span.parent_span_id == above) {
            let micros = |it: u64| (it - begin) / 1000;
            let (start, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
            let (name, indent) = (&span.name, "  ".repeat(depth));
            *text += &format!("{indent}{name} {}..{}\n", micros(start), micros(end));
            self.write(&span.span_id, begin, (depth + 1, text));
        }
    }
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |it: &KeyValue| match it.value.as_ref()?.value.as_ref()? {
        Value::StringValue(it) => Some(it.clone()),
        Value::IntValue(it) => Some(it.to_string()),
        Value::BoolValue(it) => Some(it.to_string()),
        other => Some(format!("{other:?}")),
    };
    all.iter().filter_map(|it| Some((it.key.clone(), text(it)?))).collect()
}
