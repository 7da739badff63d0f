//! Lets requests pass that may ask for what they ask, before anything else looks at them.

use std::{future::Future, pin::Pin, sync::Arc};

use actix_web::{
    Error,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse},
};

use super::refusal::Refusal;
use crate::access::{Access, Endpoint};

type Answer<B> = Pin<Box<dyn Future<Output = Result<ServiceResponse<B>, Error>>>>;

/// A middleware that refuses what `access` does.
pub(crate) fn guard<S, B>(
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
            let refused = request.error_response(Refusal::Denied(denied));
            return Box::pin(async move { Ok(refused.map_into_right_body()) });
        }
        let call = service.call(request);
        Box::pin(async move { Ok(call.await?.map_into_left_body()) })
    }
}
