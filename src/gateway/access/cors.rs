//! CORS: answers that browsers let web pages of allowed origins read.
//!
//! A page of an allowed origin may infer and read; what changes the server stays refused to it by
//! the guard, as our own page alone knows the token. Cookies and passwords are never asked for.

use std::future::{Future, ready};

use actix_web::{
    Error, HttpResponse,
    dev::{Service, ServiceRequest, ServiceResponse},
    http::{
        Method,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
};
use futures_util::future::Either;

use super::PAGE_TOKEN_HEADER;
use troupe_options::AllowedOrigin;

/// How long a browser need not ask again, in seconds: Chromium's longest.
const PREFLIGHT_MAX_AGE_SECS: u32 = 7200;

/// What every endpoint takes, or refuses by itself.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST");

/// Headers of answers that scripts may read, beside those that they always may.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("inference-header-content-length, retry-after, content-encoding");

/// The origins whose pages may read answers.
#[derive(Clone, Debug, Default)]
pub struct AllowedOrigins {
    any: bool,
    listed: Vec<String>,
}

impl AllowedOrigins {
    /// As the command line has them.
    pub fn new(origins: &[AllowedOrigin]) -> AllowedOrigins {
        let listed = origins.iter().filter_map(|it| match it {
            AllowedOrigin::Any => None,
            AllowedOrigin::One(origin) => Some(origin.clone()),
        });
        AllowedOrigins { any: origins.contains(&AllowedOrigin::Any), listed: listed.collect() }
    }

    /// Is a page of this host and port listed?
    pub(super) fn has_host(&self, host: &str) -> bool {
        let mut hosts = self.listed.iter().filter_map(|origin| origin.split_once("://"));
        hosts.any(|(_, listed)| listed.eq_ignore_ascii_case(host))
    }

    fn is_empty(&self) -> bool {
        !self.any && self.listed.is_empty()
    }

    /// What to say of the origin that a request names; `None` if it is not allowed, or no page's.
    fn of(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        if self.any {
            return Some(HeaderValue::from_static("*"));
        }
        let is_listed = self.listed.iter().any(|it| it.as_bytes() == origin.as_bytes());
        is_listed.then(|| origin.clone())
    }
}

/// Answers the questions that browsers ask before a request, and says in every other answer which
/// pages may read it.
pub(crate) fn with_cors<S>(
    origins: &AllowedOrigins,
    request: ServiceRequest,
    service: &S,
) -> impl Future<Output = Result<ServiceResponse, Error>> + use<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error>,
{
    if origins.is_empty() {
        return Either::Left(service.call(request));
    }
    let allowed = origins.of(request.headers());
    let depends = !origins.any;
    let is_preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let call = if is_preflight && allowed.is_some() {
        let answer = preflight(request.headers());
        Either::Left(ready(Ok(request.into_response(answer))))
    } else {
        Either::Right(service.call(request))
    };
    Either::Right(async move {
        let mut response: ServiceResponse = call.await?;
        let headers = response.headers_mut();
        if depends {
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(origin) = allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        Ok(response)
    })
}

/// All headers that were asked for, but that of our own page: whoever reads a token elsewhere must
/// not be able to say it.
fn preflight(headers: &HeaderMap) -> HttpResponse {
    let asked = headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let asked = asked.filter_map(|it| it.to_str().ok()).flat_map(|it| it.split(','));
    let names = asked.filter_map(|it| HeaderName::from_bytes(it.trim().as_bytes()).ok());
    let names: Vec<_> = names.filter(|it| it.as_str() != PAGE_TOKEN_HEADER).collect();
    let mut answer = HttpResponse::NoContent();
    answer
        .insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, METHODS))
        .insert_header((header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE_SECS));
    if !names.is_empty() {
        let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
        answer.insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, names.join(", ")));
    }
    answer.finish()
}
