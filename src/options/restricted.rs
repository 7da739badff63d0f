//! Restricted APIs: groups of endpoints that ask for a header with a secret value.

use std::fmt;

use clap::Args;

/// A group of endpoints that can be restricted together. All but the last have Triton's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Api {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
    /// What only troupe has: the dashboard, graphs of models, taps.
    Troupe,
}

impl Api {
    /// All of them, in the order of their numbers.
    pub const ALL: [Api; 10] = [
        Api::Health,
        Api::Metadata,
        Api::Inference,
        Api::SharedMemory,
        Api::ModelConfig,
        Api::ModelRepository,
        Api::Statistics,
        Api::Trace,
        Api::Logging,
        Api::Troupe,
    ];

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Api::Health => "health",
            Api::Metadata => "metadata",
            Api::Inference => "inference",
            Api::SharedMemory => "shared-memory",
            Api::ModelConfig => "model-config",
            Api::ModelRepository => "model-repository",
            Api::Statistics => "statistics",
            Api::Trace => "trace",
            Api::Logging => "logging",
            Api::Troupe => "troupe",
        }
    }
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// This one.
    pub fn new(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    /// The text, to hand it over.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The text, to compare with.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// One value of such a flag: these endpoints, only with this header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestrictedGroup {
    /// What is restricted.
    pub apis: Vec<Api>,
    /// The header's name, in lower case.
    pub header: String,
    /// As it was written: refusals name it so.
    pub written_header: String,
    /// What the header has to say.
    pub value: Secret,
}

/// Which endpoints ask for a header.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Network")]
pub struct Restricted {
    /// `<api>[,<api>…]:<header>=<value>`: these endpoints of HTTP only with this header; may be given
    /// more than once. Names: `health`, `metadata`, `inference`, `shared-memory`, `model-config`,
    /// `model-repository`, `statistics`, `trace`, `logging`, and `troupe` for the dashboard, graphs
    /// and taps
    #[arg(long, value_parser = of_http)]
    pub http_restricted_api: Vec<RestrictedGroup>,
    /// The same for gRPC; the header is `triton-grpc-protocol-<header>`. No call of gRPC is of the
    /// group `troupe`
    #[arg(long, value_parser = of_grpc)]
    pub grpc_restricted_protocol: Vec<RestrictedGroup>,
}

impl Restricted {
    /// Why the groups contradict each other.
    pub(crate) fn problem(&self) -> Option<String> {
        let groups = [&self.http_restricted_api, &self.grpc_restricted_protocol];
        groups.into_iter().find_map(|groups| {
            let mut seen = Vec::new();
            let mut all = groups.iter().flat_map(|it| &it.apis);
            let twice = all.find(|api| {
                let is_known = seen.contains(api);
                seen.push(*api);
                is_known
            })?;
            let name = twice.name();
            Some(format!("restricted api '{name}' can not be specified in multiple config groups"))
        })
    }
}

impl Restricted {
    /// A text about each protocol that leaves open what the other restricts.
    pub fn left_open(&self) -> Vec<String> {
        let apis = |groups: &[RestrictedGroup]| -> Vec<Api> {
            groups.iter().flat_map(|it| it.apis.clone()).collect()
        };
        let (http, grpc) = (apis(&self.http_restricted_api), apis(&self.grpc_restricted_protocol));
        let only = |these: &[Api], others: &[Api]| -> Vec<&str> {
            // No call of gRPC is of this group.
            let is_open = |api: &&Api| !others.contains(api) && **api != Api::Troupe;
            these.iter().filter(is_open).map(|it| it.name()).collect()
        };
        [
            (only(&http, &grpc), "HTTP", "gRPC", "--grpc-restricted-protocol"),
            (only(&grpc, &http), "gRPC", "HTTP", "--http-restricted-api"),
        ]
        .into_iter()
        .filter(|(names, ..)| !names.is_empty())
        .map(|(names, closed, open, flag)| {
            let names = names.join(",");
            format!("{names}: restricted over {closed}, open over {open} without {flag}")
        })
        .collect()
    }
}

fn of_http(text: &str) -> Result<RestrictedGroup, String> {
    group(text, "--http-restricted-api", "api", "")
}

fn of_grpc(text: &str) -> Result<RestrictedGroup, String> {
    group(text, "--grpc-restricted-protocol", "protocol", "triton-grpc-protocol-")
}

/// The value is in no error.
fn group(text: &str, flag: &str, kind: &str, prefix: &str) -> Result<RestrictedGroup, String> {
    let shown = || match text.split_once('=') {
        Some((before, _)) => format!("{before}=…"),
        None => text.to_owned(),
    };
    let wrong =
        || format!("{flag} option format is '<config name>:<setting>=<value>'. Got {}", shown());
    let (names, setting) = text.split_once(':').ok_or_else(wrong)?;
    let (header, value) = setting.split_once('=').ok_or_else(wrong)?;
    let is_token = |it: u8| it.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&it);
    if header.is_empty() || !header.bytes().all(is_token) {
        return Err(wrong());
    }
    let api = |name: &str| {
        let found = Api::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or_else(|| {
            let known = Api::ALL.map(Api::name).join(", ");
            format!("unknown restricted {kind} '{name}' (there are: {known})")
        })
    };
    let written_header = format!("{prefix}{header}");
    Ok(RestrictedGroup {
        apis: names.split(',').map(api).collect::<Result<_, _>>()?,
        header: written_header.to_ascii_lowercase(),
        written_header,
        value: Secret(value.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "there are: health, metadata, inference, shared-memory, model-config, \
                         model-repository, statistics, trace, logging, troupe";

    #[test]
    fn groups_are_read_as_triton_reads_them() {
        let group = of_http("health,model-repository:Admin-Key=a=b:c").unwrap();
        assert_eq!(group.apis, [Api::Health, Api::ModelRepository]);
        assert_eq!((&*group.header, group.value.bytes()), ("admin-key", &b"a=b:c"[..]));
        assert_eq!(of_grpc("trace:Key=v").unwrap().written_header, "triton-grpc-protocol-Key");
        for (text, expected) in [
            (
                "health",
                "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health",
            ),
            (
                "health:k",
                "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:k",
            ),
            (
                "health:=v",
                "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:=…",
            ),
            (
                "health:a b=v",
                "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:a b=…",
            ),
            ("halth:k=v", &*format!("unknown restricted api 'halth' ({KNOWN})")),
            ("health,:k=v", &*format!("unknown restricted api '' ({KNOWN})")),
        ] {
            assert_eq!(of_http(text).unwrap_err(), expected);
        }
        let unknown = format!("unknown restricted protocol 'x' ({KNOWN})");
        assert_eq!(of_grpc("x:k=v").unwrap_err(), unknown);
    }

    #[test]
    fn no_api_is_in_two_groups_of_one_protocol() {
        let one = || vec![of_http("health:k=v").unwrap()];
        let both = Restricted { http_restricted_api: one(), grpc_restricted_protocol: one() };
        assert_eq!(both.problem(), None);
        let twice = Restricted {
            http_restricted_api: [one(), one()].concat(),
            grpc_restricted_protocol: Vec::new(),
        };
        let text = "restricted api 'health' can not be specified in multiple config groups";
        assert_eq!(twice.problem().as_deref(), Some(text));
    }

    #[test]
    fn what_one_protocol_leaves_open_is_told() {
        let http = vec![of_http("health,inference,troupe:k=v").unwrap()];
        let grpc = vec![of_grpc("health,trace:k=v").unwrap()];
        let left_open = |http: &[_], grpc: &[_]| {
            Restricted {
                http_restricted_api: http.to_vec(),
                grpc_restricted_protocol: grpc.to_vec(),
            }
            .left_open()
        };
        let texts = [
            "inference: restricted over HTTP, open over gRPC without --grpc-restricted-protocol",
            "trace: restricted over gRPC, open over HTTP without --http-restricted-api",
        ];
        assert_eq!(left_open(&http, &grpc), texts);
        assert!(left_open(&[], &[]).is_empty());
    }

    #[test]
    fn values_are_not_printed() {
        let group = of_http("health:k=hunter2").unwrap();
        assert!(!format!("{group:?}").contains("hunter2"));
    }
}
