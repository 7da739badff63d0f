//! The guard in front of HTTP endpoints: refuses what `Access` does, before anything else looks.

use std::{future::Future, pin::Pin, sync::Arc};

use actix_web::{
    Error, HttpResponse, Resource,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse},
    web::ServiceConfig,
};

use super::{Access, Denied, Endpoint, FOREIGN_PAGE, ONLY_PAGE};

type Answer<B> = Pin<Box<dyn Future<Output = Result<ServiceResponse<B>, Error>>>>;

/// Adds a resource; the guard is in front of it if there is anything to look at, also for methods
/// that it does not have.
pub(crate) fn add_guarded(
    app: &mut ServiceConfig,
    access: &Arc<Access>,
    endpoint: Endpoint,
    resource: Resource,
) {
    if access.is_guarded(endpoint) {
        let access = access.clone();
        app.service(
            resource.wrap_fn(guard(move |request| {
                access.check(endpoint, |name| header(request, name))
            })),
        );
    } else {
        app.service(resource);
    }
}

/// Adds a resource that only our own page may ask.
pub(crate) fn add_page_only(app: &mut ServiceConfig, access: &Arc<Access>, resource: Resource) {
    let access = access.clone();
    app.service(
        resource.wrap_fn(guard(move |request| access.check_page(|name| header(request, name)))),
    );
}

fn header<'a>(request: &'a ServiceRequest, name: &str) -> Option<&'a [u8]> {
    request.headers().get(name).map(|it| it.as_bytes())
}

/// A middleware that refuses what `check` does.
fn guard<S, B>(
    check: impl Fn(&ServiceRequest) -> Result<(), Denied> + Clone,
) -> impl Fn(ServiceRequest, &S) -> Answer<EitherBody<B>> + Clone
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    S::Future: 'static,
    B: MessageBody + 'static,
{
    move |request, service| {
        if let Err(denied) = check(&request) {
            let refused = request.into_response(refusal(&denied));
            return Box::pin(async move { Ok(refused.map_into_right_body()) });
        }
        let call = service.call(request);
        Box::pin(async move { Ok(call.await?.map_into_left_body()) })
    }
}

fn refusal(denied: &Denied) -> HttpResponse {
    let text = match denied {
        Denied::Restricted(header) => {
            format!("This API is restricted, expecting header '{header}'")
        }
        Denied::ForeignPage => FOREIGN_PAGE.to_owned(),
        Denied::OnlyPage => ONLY_PAGE.to_owned(),
    };
    HttpResponse::Forbidden().json(serde_json::json!({ "error": text }))
}
