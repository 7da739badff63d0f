//! Pointers for requests that no endpoint answers: where what was probably meant is, by the paths
//! that other servers have.

use actix_web::{
    HttpRequest, HttpResponse,
    http::{Method, header},
};

use super::{
    refusal::{self, refused},
    server_state::state,
};
use crate::service_urls::host_of;
use troupe_base::config::instead;

/// What may stand behind a model's name, and its version.
const ENDS: [&str; 9] =
    ["infer", "generate", "generate_stream", "ready", "config", "stats", "graph", "tap", "logs"];

/// Paths of pages and documents that other servers have, and where ours are.
const MOVED: [(&str, &str); 6] = [
    ("/docs", "/v2/docs"),
    ("/redoc", "/v2/docs"),
    ("/swagger", "/v2/docs"),
    ("/openapi.json", "/v2/openapi.json"),
    ("/v2/openapi", "/v2/openapi.json"),
    ("/v2/redoc", "/v2/docs"),
];

/// Paths by which others ask for health, and the beginnings of those by which they ask models.
const HEALTH: [&str; 9] = [
    "/health",
    "/healthz",
    "/livez",
    "/readyz",
    "/ready",
    "/live",
    "/ping",
    "/v2/health",
    "/v2/ready",
];
const INFERENCE: [&str; 8] = [
    "/v1/",
    "/predict",
    "/predictions/",
    "/invocations",
    "/models/",
    "/v2/model/",
    "/infer",
    "/generate",
];

/// No such path.
pub(super) async fn not_found(http: HttpRequest) -> HttpResponse {
    let path = http.path();
    if let Some((_, to)) = MOVED.iter().find(|it| it.0 == path) {
        let mut answer = HttpResponse::TemporaryRedirect();
        return refused(answer.insert_header((header::LOCATION, *to)), "Not Found", &at(to));
    }
    let hint = elsewhere(&http, path).or_else(|| near(path)).unwrap_or_default();
    refusal::not_found(&hint)
}

/// A known path, another method: what only reads is asked with GET, everything else with POST.
pub(super) async fn method_not_allowed(http: HttpRequest) -> HttpResponse {
    let mut answer = HttpResponse::MethodNotAllowed();
    let allowed = match *http.method() {
        Method::GET => "POST",
        Method::POST => "GET",
        Method::OPTIONS => {
            let hint = ": web pages of other origins may ask where --http-allow-origin says so";
            return refused(&mut answer, "Method Not Allowed", hint);
        }
        _ => return refused(&mut answer, "Method Not Allowed", ""),
    };
    answer.insert_header((header::ALLOW, allowed));
    let model = http.path().strip_prefix("/v2/models/").filter(|it| !it.contains('/'));
    let infer = match model.filter(|_| allowed == "GET") {
        Some(model) => format!("; inference is POST /v2/models/{model}/infer"),
        None => String::new(),
    };
    refused(&mut answer, "Method Not Allowed", &format!(": ask with {allowed}{infer}"))
}

fn at(path: &str) -> String {
    format!(": it is at {path}")
}

/// What another port answers.
fn elsewhere(http: &HttpRequest, path: &str) -> Option<String> {
    let what = match path {
        "/metrics" => "/metrics",
        "/dashboard" | "/graph" | "/ui" => "/",
        _ => return None,
    };
    let settings = &state(http).ok()?.settings;
    let url = settings.urls.metrics.get().filter(|_| what != "/" || settings.allow_dashboard);
    let url = url.and_then(|url| url.text(host_of(http)));
    Some(match url {
        Some(url) => at(&format!("{url}{what}")),
        None => ": this server does not serve it".to_owned(),
    })
}

/// What this port answers instead.
fn near(path: &str) -> Option<String> {
    let trimmed = path.trim_end_matches('/');
    if trimmed != path && !trimmed.is_empty() {
        return Some(format!(": write {trimmed} without '/' at its end"));
    }
    if HEALTH.contains(&path) {
        return Some(": health is at /v2/health/ready and /v2/health/live".to_owned());
    }
    if let Some(end) = end_of_model(path) {
        let text = format!(": a model has no '{end}'");
        return Some(instead(text, end, "paths", ENDS.into_iter()));
    }
    INFERENCE.iter().any(|it| path.starts_with(it)).then(|| {
        ": models are asked by POST /v2/models/MODEL/infer, or with flat JSON by POST \
         /v2/models/MODEL/generate; GET /v2/models lists them"
            .to_owned()
    })
}

/// What stands behind a model's name, and its version.
fn end_of_model(path: &str) -> Option<&str> {
    let mut parts = path.strip_prefix("/v2/models/")?.split('/').skip(1);
    let end = parts.next()?;
    let end = if end == "versions" { parts.nth(1)? } else { end };
    parts.next().is_none().then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_servers_lead_to_ours() {
        for (path, expected) in [
            ("/v2/nope", ""),
            ("/favicon.ico", ""),
            ("/healthz", ": health is at /v2/health/ready and /v2/health/live"),
            ("/v2/models/", ": write /v2/models without '/' at its end"),
            ("/v2/models/m/infr", ": a model has no 'infr', did you mean `infer`?"),
            ("/v2/models/m/versions/1/infr", ": a model has no 'infr', did you mean `infer`?"),
            (
                "/v2/models/m/predict",
                ": a model has no 'predict' (its paths: infer, generate, generate_stream, ready, \
                 config, stats, graph, tap, logs)",
            ),
            (
                "/v1/models/m:predict",
                ": models are asked by POST /v2/models/MODEL/infer, or with flat JSON by POST \
                 /v2/models/MODEL/generate; GET /v2/models lists them",
            ),
        ] {
            assert_eq!(near(path).unwrap_or_default(), expected, "{path}");
        }
    }
}
