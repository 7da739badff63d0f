//! Headers that become parameters of a request, where the command line says so.

use troupe_base::{
    error::{Error, Result},
    request::{Parameter, Parameters},
};
use troupe_options::HeaderPattern;

/// Names with a meaning of their own: a header must not bring them in.
const RESERVED: [&str; 7] = [
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data_output",
];

/// The parameters that these headers are: names in lower case, and values.
pub(super) fn forwarded<'a>(
    pattern: &HeaderPattern,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Parameters> {
    let mut parameters = Parameters::default();
    for (name, value) in headers.filter(|it| pattern.matches(it.0)) {
        if RESERVED.contains(&name) || name.starts_with("triton_") {
            return Err(Error::invalid(format!(
                "Header '{name}' is reserved for Triton usage and cannot be forwarded."
            )));
        }
        let value = String::from_utf8_lossy(value).into_owned();
        parameters.push((name.to_owned().into(), Parameter::String(value)));
    }
    Ok(parameters)
}
