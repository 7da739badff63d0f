//! Restricted APIs: CVE-2026-24207. The same verdict on every route, alias and method of a group.

use std::collections::BTreeSet;

use tonic::{Code, Request, metadata::MetadataValue};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use troupe_proto::inference::{ModelConfigRequest, RepositoryIndexRequest, ServerLiveRequest};

use crate::support::{
    Http, Repository, Server,
    grpc::{Grpc, floats},
    native, until,
};

const VALUE: &str = "hunter2=;:x";

/// Every route: its group, the methods it takes, and a path.
pub(super) const ROUTES: &[(&str, &str, &str)] = &[
    ("health", "GET", "/v2/health/live"),
    ("health", "GET", "/v2/health/ready"),
    ("health", "GET", "/v2/models/m/ready"),
    ("health", "GET", "/v2/models/m/versions/1/ready"),
    ("metadata", "GET", "/"),
    ("metadata", "GET", "/v2/openapi.json"),
    ("metadata", "GET", "/v2/docs"),
    ("metadata", "GET", "/v2/docs.css"),
    ("metadata", "GET", "/v2"),
    ("metadata", "GET", "/v2/"),
    ("metadata", "GET", "/v2/models/m"),
    ("metadata", "GET", "/v2/models/m/versions/1"),
    ("inference", "POST", "/v2/models/m/infer"),
    ("inference", "POST", "/v2/models/m/versions/1/infer"),
    ("inference", "POST", "/v2/models/m/generate"),
    ("inference", "POST", "/v2/models/m/versions/1/generate"),
    ("inference", "POST", "/v2/models/m/generate_stream"),
    ("inference", "POST", "/v2/models/m/versions/1/generate_stream"),
    ("shared-memory", "GET", "/v2/systemsharedmemory/status"),
    ("shared-memory", "GET", "/v2/systemsharedmemory/region/r/status"),
    ("shared-memory", "POST", "/v2/systemsharedmemory/register"),
    ("shared-memory", "POST", "/v2/systemsharedmemory/region/r/register"),
    ("shared-memory", "POST", "/v2/systemsharedmemory/unregister"),
    ("shared-memory", "POST", "/v2/systemsharedmemory/region/r/unregister"),
    ("shared-memory", "GET", "/v2/cudasharedmemory/status"),
    ("shared-memory", "GET", "/v2/cudasharedmemory/region/r/status"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/register"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/region/r/register"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/unregister"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/region/r/unregister"),
    ("model-config", "GET", "/v2/models/m/config"),
    ("model-config", "GET", "/v2/models/m/versions/1/config"),
    ("model-repository", "GET", "/v2/models"),
    ("model-repository", "POST", "/v2/repository/index"),
    ("model-repository", "POST", "/v2/repository/models/index"),
    ("model-repository", "POST", "/v2/repository/models/m/load"),
    ("model-repository", "POST", "/v2/repository/models/m/unload"),
    ("statistics", "GET", "/v2/models/stats"),
    ("statistics", "GET", "/v2/models/m/stats"),
    ("statistics", "GET", "/v2/models/m/versions/1/stats"),
    ("trace", "GET|POST", "/v2/trace/setting"),
    ("trace", "GET|POST", "/v2/models/m/trace/setting"),
    ("logging", "GET|POST", "/v2/logging"),
    ("troupe", "GET", "/v2/models/m/logs"),
    ("troupe", "GET", "/v2/models/m/graph"),
    ("troupe", "GET", "/v2/models/m/versions/1/graph"),
    ("troupe", "POST", "/v2/models/m/tap"),
    ("troupe", "POST", "/v2/models/m/versions/1/tap"),
];

/// Whether a route of `group` asks for a header where the group `closed` is restricted. What names
/// all models asks for that of the index, too.
fn is_closed(group: &str, path: &str, closed: &str) -> bool {
    let lists = ["/v2/openapi.json", "/v2/docs"].contains(&path);
    group == closed || (lists && closed == "model-repository")
}

/// Each method of each route.
fn requests() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let of = |(group, methods, path): &(&'static str, &'static str, &'static str)| {
        let (group, path) = (*group, *path);
        methods.split('|').map(move |method| (group, method, path))
    };
    ROUTES.iter().flat_map(of)
}

fn serve(groups: &str) -> Server {
    let repository = Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]);
    let http = format!("--http-restricted-api={groups}:Admin-Key={VALUE}");
    let grpc = format!("--grpc-restricted-protocol={groups}:Admin-Key={VALUE}");
    let server = Server::launch(repository, &[&http, &grpc], &[]);
    let key = [("admin-key", VALUE)];
    until("the server to be ready", || {
        server.http.send("GET", "/v2/health/ready", &key, b"").status == 200
    });
    server
}

fn status(http: &Http, method: &str, path: &str, key: Option<&str>) -> u16 {
    let headers: Vec<_> = key.iter().map(|it| ("Admin-Key", *it)).collect();
    http.send(method, path, &headers, b"").status
}

#[test]
fn every_route_of_a_restricted_group_asks_for_its_header_before_anything_else() {
    let all = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,\
               trace,logging,troupe";
    let server = serve(all);
    for (_, method, path) in requests() {
        let refused = server.http.send(method, path, &[], b"");
        refused.refuses(403, "This API is restricted, expecting header 'Admin-Key'");
        assert_eq!(status(&server.http, method, path, Some("hunter2")), 403, "{path}");
        assert_eq!(status(&server.http, method, path, Some("")), 403, "{path}");
        assert_ne!(status(&server.http, method, path, Some(VALUE)), 403, "{path}");
        // Before the verb is looked at.
        assert_eq!(status(&server.http, "DELETE", path, None), 403, "{path}");
        // Aliases lead to the same verdict or nowhere.
        let aliases = [
            format!("{path}/"),
            format!("/{path}"),
            path.replace("/v2", "/v2/."),
            path.replace("/v2", "/V2"),
            path.replace("/v2", "/v2/%2e"),
            path.replace("/v2", "/x/../v2"),
            path.replace("/models", "//models"),
            path.replace("health", "he%61lth"),
            format!("{path}?Admin-Key={VALUE}"),
        ];
        for alias in aliases {
            let status = status(&server.http, method, &alias, None);
            assert!(matches!(status, 400 | 403 | 404), "{method} {alias}: {status}");
        }
        let claimed = [("X-HTTP-Method-Override", "GET"), ("X-Original-URL", "/v2/health/live")];
        assert_eq!(server.http.send(method, path, &claimed, b"").status, 403, "{path}");
    }
    for path in ["/", "/changes", "/model/m", "/dashboard.js", "/v2/health/live"] {
        assert_eq!(status(&server.metrics, "GET", path, None), 403, "{path}");
        assert_eq!(status(&server.metrics, "GET", path, Some(VALUE)), 200, "{path}");
    }
    assert_eq!(status(&server.metrics, "GET", "/metrics", None), 200);
    assert!(!server.log().contains("hunter2"), "values are not logged");
}

#[test]
fn each_group_closes_its_own_routes_and_no_others() {
    let groups: BTreeSet<&str> = ROUTES.iter().map(|it| it.0).collect();
    for closed in groups {
        let server = serve(closed);
        for (group, method, path) in requests() {
            let is_refused = status(&server.http, method, path, None) == 403;
            let expected = is_closed(group, path, closed);
            assert_eq!(is_refused, expected, "{closed} is closed: {method} {path}");
        }
        let health = status(&server.metrics, "GET", "/v2/health/live", None);
        assert_eq!(health == 403, closed == "health", "{closed} is closed: health beside metrics");
        let dashboard = status(&server.metrics, "GET", "/", None);
        assert_eq!(dashboard == 403, closed == "troupe", "{closed} is closed: the dashboard");
    }
}

#[test]
fn other_groups_stay_open() {
    let server = serve("model-repository,logging");
    for (group, method, path) in requests() {
        let closed = ["model-repository", "logging"];
        let is_restricted = closed.iter().any(|it| is_closed(group, path, it));
        let is_refused = status(&server.http, method, path, None) == 403;
        assert_eq!(is_refused, is_restricted, "{method} {path}");
    }
    server.is_well();
}

#[test]
fn grpc_asks_for_the_same_under_its_own_name() {
    let server = serve("health,inference,model-repository");
    let mut grpc = Grpc::connect(server.grpc);
    let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-Admin-Key'";
    let live = grpc.call(async |it| it.server_live(ServerLiveRequest {}).await);
    let index = RepositoryIndexRequest::default();
    let index = grpc.call(async |it| it.repository_index(index).await);
    let infer = grpc.infer(floats("m", &[("x", &[1.0])]));
    let stream = grpc.stream(vec![floats("m", &[("x", &[1.0])])]);
    let health = grpc.run_on_channel(async |channel| {
        HealthClient::new(channel).check(HealthCheckRequest::default()).await
    });
    for refused in [live.err(), index.err(), infer.err(), stream.err(), health.err()] {
        let status = refused.unwrap();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, text));
    }
    let open = ModelConfigRequest { name: "m".to_owned(), ..Default::default() };
    assert!(grpc.call(async |it| it.model_config(open).await).is_ok());
    for (value, is_open) in [(VALUE, true), ("hunter2", false)] {
        let mut request = Request::new(floats("m", &[("x", &[1.0])]));
        let value = MetadataValue::try_from(value).unwrap();
        request.metadata_mut().insert("triton-grpc-protocol-admin-key", value);
        assert_eq!(grpc.call(async |it| it.model_infer(request).await).is_ok(), is_open);
    }
}

#[test]
fn groups_that_make_no_sense_end_the_start() {
    let repository = Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]);
    for (flags, text) in [
        (&["--http-restricted-api=halth:k=v"][..], "unknown restricted api 'halth' "),
        (&["--grpc-restricted-protocol=x:k=v"], "unknown restricted protocol 'x' "),
        (
            &["--http-restricted-api=health:k=v", "--http-restricted-api=trace,health:k=v"],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
    ] {
        let ended = Server::fails(&repository, flags);
        assert_eq!(ended.code, Some(1));
        assert!(ended.output.contains(text), "{}", ended.output);
    }
}
