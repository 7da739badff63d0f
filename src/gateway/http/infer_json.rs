//! The JSON of an inference request as it stands there.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json_values::{Dims, List, Members, Scalar};

/// The whole request.
#[derive(Deserialize, Default)]
#[serde(default, expecting = "an object with 'inputs'")]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) id: Scalar<'a>,
    #[serde(borrow)]
    pub(super) parameters: Members<'a>,
    #[serde(borrow)]
    pub(super) inputs: List<InputJson<'a>>,
    #[serde(borrow)]
    pub(super) outputs: List<OutputJson<'a>>,
}

/// One input.
#[derive(Deserialize, Default)]
#[serde(
    default,
    expecting = "an object like {\"name\": …, \"datatype\": …, \"shape\": […], \"data\": […]}"
)]
pub(super) struct InputJson<'a> {
    #[serde(borrow)]
    pub(super) name: Scalar<'a>,
    #[serde(borrow)]
    pub(super) datatype: Scalar<'a>,
    pub(super) shape: Dims,
    #[serde(borrow)]
    pub(super) parameters: Members<'a>,
    /// Read once the type is known, which may stand behind it.
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
}

/// One requested output.
#[derive(Deserialize, Default)]
#[serde(default, expecting = "an object like {\"name\": …}")]
pub(super) struct OutputJson<'a> {
    #[serde(borrow)]
    pub(super) name: Scalar<'a>,
    #[serde(borrow)]
    pub(super) parameters: Members<'a>,
}
