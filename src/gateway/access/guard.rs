//! The guard in front of HTTP endpoints: refuses what `Access` does, before anything else looks.

use std::{future::Future, pin::Pin, sync::Arc};

use actix_web::{
    Error, HttpResponse, Resource,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse},
    web::ServiceConfig,
};

use super::{Access, Denied, Endpoint, FOREIGN_PAGE};

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
        app.service(resource.wrap_fn(guard(access.clone(), endpoint)));
    } else {
        app.service(resource);
    }
}

/// A middleware that refuses what `access` does.
fn guard<S, B>(
    access: Arc<Access>,
    endpoint: Endpoint,
) -> impl Fn(ServiceRequest, &S) -> Answer<EitherBody<B>> + Clone
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    S::Future: 'static,
    B: MessageBody + 'static,
{
    move |request, service| {
        let header = |name: &str| request.headers().get(name).map(|it| it.as_bytes());
        if let Err(denied) = access.check(endpoint, header) {
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
    };
    HttpResponse::Forbidden().json(serde_json::json!({ "error": text }))
}
