//! The codecs without the connection around them, for benches.

use actix_web::HttpResponse;
use bytes::Bytes;

use super::{
    body::Body,
    decode::{self, BodyLayout},
    encode::InferAnswer,
};
use crate::{
    inference::{Deliveries, Delivery, Encoding},
    shared_memory::RegionAccess,
};
use troupe_base::{
    budget::Charge,
    config::ModelConfig,
    error::Result,
    model::Model,
    request::{Request, Response, Wanted},
};

/// Reads a body of JSON, with `header` so many bytes of it and then tensors.
pub fn decode(body: Bytes, header: Option<usize>, config: &ModelConfig) -> Result<Request> {
    let layout = header.map_or(BodyLayout::Json, BodyLayout::Mixed);
    Ok(decode::decode(&Body::plain(body), layout, config, usize::MAX, &RegionAccess::default())?
        .request)
}

/// Writes all outputs of an answer, the `binary` ones as bytes.
pub fn encode(model: &Model, response: &Response, binary: &Wanted) -> Result<HttpResponse> {
    let deliveries = match binary {
        Wanted::All => Deliveries::inline(Encoding::Bytes),
        Wanted::Only(outputs) => {
            let bytes = vec![Delivery::Inline(Encoding::Bytes); outputs.len()];
            Deliveries::new(binary, bytes, Encoding::Text)
        }
    };
    let wanted = &Wanted::All;
    let answer = InferAnswer { model, id: "", response, wanted, deliveries: &deliveries };
    Ok(answer.encode(&Charge::default())?.into_response())
}
