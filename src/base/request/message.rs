//! Parameters of requests and responses as messages of gRPC, for both ends of it.

use troupe_proto::inference::{InferParameter, infer_parameter::ParameterChoice};

use super::Parameter;

impl From<Parameter> for InferParameter {
    fn from(parameter: Parameter) -> InferParameter {
        let choice = match parameter {
            Parameter::Bool(it) => ParameterChoice::BoolParam(it),
            Parameter::Int(it) => ParameterChoice::Int64Param(it),
            Parameter::Uint(it) => ParameterChoice::Uint64Param(it),
            Parameter::Double(it) => ParameterChoice::DoubleParam(it),
            Parameter::String(it) => ParameterChoice::StringParam(it),
        };
        InferParameter { parameter_choice: Some(choice) }
    }
}
