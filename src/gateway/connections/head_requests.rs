//! HEAD: answered as GET is, without the body.

use actix_web::{dev::ServiceRequest, http::Method};

/// The same request, or a GET in the place of a HEAD. The connection remembers what it was, and
/// leaves out the body.
pub fn head_as_get(mut request: ServiceRequest) -> ServiceRequest {
    if request.method() == Method::HEAD {
        request.head_mut().method = Method::GET;
    }
    request
}
