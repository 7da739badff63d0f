//! Heads of requests with large bodies, copied out of the buffer they were received in.

use actix_web::{
    dev::ServiceRequest,
    http::{Uri, header::HeaderValue},
};

use super::body::announced;
use crate::request_limits::MIN_SHARED_BYTES;

/// The same request. A head is parts of the connection's buffer, which grows to a hundred KB where
/// a large body follows: they would keep it until the request is answered, and beyond that, as heads
/// are kept for later requests.
pub(super) fn detached(mut request: ServiceRequest) -> ServiceRequest {
    if announced(request.headers()) < MIN_SHARED_BYTES {
        return request;
    }
    let head = request.head_mut();
    let copied = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
    let headers = head.headers.iter().filter_map(|(name, it)| Some((name.clone(), copied(it)?)));
    head.headers = headers.collect();
    if let Ok(copy) = Uri::try_from(head.uri.to_string()) {
        head.uri = copy.clone();
        request.match_info_mut().get_mut().update(&copy);
    }
    request
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn a_head_is_the_same_after_it_was_copied() {
        for (length, is_copied) in [("65536", true), ("65535", false), ("many", false)] {
            let request = TestRequest::post().uri("/v2/models/m%20n/infer?a=b");
            let request = request.insert_header(("content-length", length));
            let request = request.insert_header(("x-y", "a-long-value")).to_srv_request();
            let value = |it: &ServiceRequest| it.headers().get("x-y").unwrap().as_bytes().as_ptr();
            let before = value(&request);
            let after = detached(request);
            assert_eq!(value(&after) != before, is_copied, "{length}");
            assert_eq!(after.uri(), "/v2/models/m%20n/infer?a=b");
            assert_eq!(after.headers().get("x-y").unwrap(), "a-long-value");
            assert_eq!(after.match_info().unprocessed(), "/v2/models/m n/infer");
        }
    }
}
