//! The flags of the listeners: addresses, ports, threads, and what they may not say together.

use clap::{ArgAction, Args};

use super::{
    cors::Cors, forwarding::Forwarding, memory::bytes, restricted::Restricted, switch,
    tls::TlsArguments,
};

/// What the address of a Unix socket begins with; its path follows.
pub const UNIX_SOCKET: &str = "unix:";

/// Where to listen, and how.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct ListenerArguments {
    /// Serve HTTP
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub allow_http: bool,
    /// Serve gRPC
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub allow_grpc: bool,
    /// Serve metrics
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub allow_metrics: bool,
    /// Address of the HTTP port, or `unix:PATH`
    #[arg(long, default_value = "0.0.0.0")]
    pub http_address: String,
    /// Port of HTTP; 0: any free port
    #[arg(long, default_value_t = 8000)]
    pub http_port: u16,
    /// Address of the gRPC port, or `unix:PATH`
    #[arg(long, default_value = "0.0.0.0")]
    pub grpc_address: String,
    /// Port of gRPC; 0: any free port
    #[arg(long, default_value_t = 8001)]
    pub grpc_port: u16,
    /// Address of the metrics port, or `unix:PATH` [default: that of the HTTP port]
    #[arg(long)]
    pub metrics_address: Option<String>,
    /// Port of metrics; 0: any free port
    #[arg(long, default_value_t = 8002)]
    pub metrics_port: u16,
    /// Let other processes listen on the HTTP port too; each gets a part of the connections
    #[arg(long, value_parser = switch, default_value = "false", action = ArgAction::Set)]
    pub reuse_http_port: bool,
    /// Let other processes listen on the gRPC port too; each gets a part of the connections
    #[arg(long, value_parser = switch, default_value = "false", action = ArgAction::Set)]
    pub reuse_grpc_port: bool,
    /// Threads that serve requests, over HTTP and gRPC, and run ensembles [default: half the cores
    /// this process may use, at most 32]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub engine_thread_count: Option<u32>,
    /// The same in Triton's word
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub http_thread_count: Option<u32>,
    /// Which endpoints ask for a header.
    #[command(flatten)]
    pub restricted: Restricted,
    /// Which web pages may ask.
    #[command(flatten)]
    pub cors: Cors,
    /// Which headers become parameters.
    #[command(flatten)]
    pub forwarding: Forwarding,
    /// Take files in load requests, which are code that runs here [default: true where a port
    /// listens on loopback or a Unix socket only]
    #[arg(long, value_parser = switch)]
    pub allow_load_overrides: Option<bool>,
    /// Connections at a time, over HTTP and gRPC together; a new one replaces one that is idle for a
    /// second [default: three quarters of the descriptors that the process may have]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
    /// Seconds after which a client is given up that sends nothing more of a request, or takes
    /// nothing more of an answer; 0: never
    #[arg(long, default_value_t = 30)]
    pub stalled_connection_secs: u32,
    /// Bytes of the largest request over HTTP and gRPC, before and after inflating it [default: a
    /// quarter of --max-inflight-bytes, at most 2147483647]
    #[arg(long, value_parser = input_size)]
    pub http_max_input_size: Option<usize>,
}

impl ListenerArguments {
    /// The address of the metrics port.
    pub fn metrics_address(&self) -> &str {
        self.metrics_address.as_ref().unwrap_or(&self.http_address)
    }

    /// How many threads serve, if one of the flags says so.
    pub fn engine_threads(&self) -> Option<u32> {
        self.engine_thread_count.or(self.http_thread_count)
    }

    /// May loads that come to this address bring files?
    pub fn takes_files(&self, address: &str) -> bool {
        self.allow_load_overrides.unwrap_or_else(|| is_local(address))
    }

    /// Why the flags contradict each other.
    pub(crate) fn problem(&self, tls: &TlsArguments) -> Option<String> {
        if let (Some(engine), Some(http)) = (self.engine_thread_count, self.http_thread_count)
            && engine != http
        {
            return Some(format!(
                "Error: --engine-thread-count={engine} and --http-thread-count={http} are about \
                 the same threads: give one of them"
            ));
        }
        let http = ("HTTP", &*self.http_address, self.http_port);
        let grpc = ("GRPC", &*self.grpc_address, self.grpc_port);
        let metrics = ("metrics", self.metrics_address(), self.metrics_port);
        let listeners = [
            (self.allow_http, http, "http", tls.http()),
            (self.allow_grpc, grpc, "grpc", tls.grpc()),
            (self.allow_metrics, metrics, "metrics", tls.metrics()),
        ];
        let mut open: Vec<(&str, &str, u16)> = Vec::new();
        for (_, (service, address, port), flag, files) in listeners.into_iter().filter(|it| it.0) {
            let path = address.strip_prefix(UNIX_SOCKET);
            match (files, path) {
                (Err(problem), _) => return Some(format!("Error: {problem}")),
                (_, Some("")) => return Some(format!("--{flag}-address={address} has no path")),
                (Ok(Some(_)), Some(_)) => {
                    return Some(format!(
                        "--{flag}-use-ssl encrypts a port; {address} is a Unix socket, whose bytes \
                         stay on this machine"
                    ));
                }
                _ => (),
            }
            // Of Unix sockets the path is all there is; port 0 is another one each time.
            let place = (address, if path.is_some() { 0 } else { port });
            let is_same =
                |it: &&(&str, &str, u16)| (it.1, it.2) == place && (path.is_some() || port != 0);
            if let Some((other, ..)) = open.iter().find(is_same) {
                return Some(match path {
                    Some(_) => format!(
                        "The server cannot listen to {other} requests and {service} requests at \
                         the same Unix socket {address}: give --{flag}-address"
                    ),
                    None => format!(
                        "The server cannot listen to {other} requests and {service} requests at \
                         the same address and port {address}:{port}"
                    ),
                });
            }
            open.push((service, place.0, place.1));
        }
        None
    }
}

/// In Triton's words.
fn input_size(text: &str) -> Result<usize, String> {
    bytes(text).map_err(|why| format!("Error: --http-max-input-size {why}."))
}

/// Can nobody outside this machine reach it?
fn is_local(address: &str) -> bool {
    let is_loopback = |it: std::net::IpAddr| it.to_canonical().is_loopback();
    address.starts_with(UNIX_SOCKET)
        || address.eq_ignore_ascii_case("localhost")
        || address.trim_matches(['[', ']']).parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::is_local;
    use clap::Parser;

    use crate::Options;

    fn problem(arguments: &[&str]) -> Option<String> {
        let all = std::iter::once("troupe").chain(arguments.iter().copied());
        Options::try_parse_from(all).unwrap().serve.problem()
    }

    #[test]
    fn listeners_have_places_of_their_own() {
        let (http, grpc) = ("--http-address=unix:/a", "--grpc-address=unix:/a");
        for (flags, expected) in [
            (&["--http-port=0", "--grpc-port=0"][..], None),
            (
                &["--metrics-port=8001"],
                Some("GRPC requests and metrics requests at the same address"),
            ),
            (&["--metrics-port=8001", "--allow-grpc=false"], None),
            (&[http, grpc, "--metrics-address=::1"], Some("at the same Unix socket unix:/a")),
            (&[http], Some("HTTP requests and metrics requests at the same Unix socket unix:/a")),
            (&[http, "--metrics-address=127.0.0.1"], None),
            (&[http, "--allow-metrics=false"], None),
            (&["--grpc-address=unix:"], Some("--grpc-address=unix: has no path")),
        ] {
            let found = problem(flags);
            match expected {
                None => assert_eq!(found, None, "{flags:?}"),
                Some(text) => assert!(found.unwrap_or_default().contains(text), "{flags:?}"),
            }
        }
    }

    #[test]
    fn threads_have_two_names_and_one_number() {
        for (flags, expected) in [
            (&[][..], None),
            (&["--engine-thread-count=3"], Some(3)),
            (&["--http-thread-count=4"], Some(4)),
            (&["--http-thread-count=4", "--engine-thread-count=4"], Some(4)),
        ] {
            assert_eq!(problem(flags), None, "{flags:?}");
            let all = std::iter::once(&"troupe").chain(flags);
            let options = Options::try_parse_from(all).unwrap();
            assert_eq!(options.serve.listeners.engine_threads(), expected, "{flags:?}");
        }
        let differ = problem(&["--http-thread-count=4", "--engine-thread-count=2"]).unwrap();
        assert!(differ.contains("--engine-thread-count=2 and --http-thread-count=4"), "{differ}");
    }

    #[test]
    fn a_unix_socket_is_not_encrypted() {
        let files = ["--grpc-use-ssl=true", "--grpc-server-cert=c", "--grpc-server-key=k"];
        assert_eq!(problem(&files), None);
        let unix = [&files[..], &["--grpc-address=unix:/a"]].concat();
        assert!(problem(&unix).unwrap().contains("--grpc-use-ssl encrypts a port"));
        let missing = problem(&files[..1]).unwrap();
        assert_eq!(missing, "Error: --grpc-use-ssl requires --grpc-server-cert");
        assert_eq!(problem(&["--grpc-use-ssl=true", "--allow-grpc=false"]), None);
    }

    #[test]
    fn only_who_is_on_this_machine_may_bring_files_unless_it_is_said() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("[::1]", true),
            ("::ffff:127.0.0.1", true),
            ("LocalHost", true),
            ("unix:/tmp/a", true),
            ("0.0.0.0", false),
            ("::", false),
            ("10.0.0.1", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_local(address), expected, "{address}");
        }
    }
}
