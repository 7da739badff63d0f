//! `troupe infer`: sends one request to a running server and prints its answer.

use std::{collections::HashMap, time::Duration};

use tokio::{runtime::Builder, time::timeout};
use tonic::Status;

use super::{
    client::{connect, error_text, headers, with},
    input, parameters,
    print::{self, PrintLimits},
};
use troupe_options::InferArguments;
use troupe_proto::inference::{
    InferParameter, ModelConfig, ModelConfigRequest, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

/// What to print of the server's answer, or why there is none: the server's own text if it is its
/// error.
pub fn infer(arguments: &InferArguments) -> Result<String, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let Some(limit) = arguments.request.timeout else { return ask(arguments).await };
        let late = |_| format!("no answer from {} within {limit:?}", arguments.connection.url);
        timeout(limit, ask(arguments)).await.map_err(late)?
    })
}

async fn ask(arguments: &InferArguments) -> Result<String, String> {
    let headers = headers(&arguments.connection.header)?;
    let mut client = connect(&arguments.connection).await?;
    let failed = |status: Status| error_text(&arguments.connection.url, &status);
    let question = ModelConfigRequest {
        name: arguments.model.clone(),
        version: arguments.model_version.clone(),
    };
    let config = client.model_config(with(question, &headers)).await.map_err(failed)?;
    let config = config.into_inner().config.unwrap_or_default();
    let mut request = with(request(arguments, &config)?, &headers);
    if let Some(limit) = arguments.request.timeout {
        // So that the server stops too; a second more, so that this end reports the timeout.
        request.set_timeout(limit + Duration::from_secs(1));
    }
    let answer = client.model_infer(request).await.map_err(failed)?.into_inner();
    match (arguments.request.json, arguments.request.full) {
        (true, _) => print::json(&answer),
        (false, true) => print::tables(&answer, PrintLimits::NONE),
        (false, false) => print::tables(&answer, PrintLimits::SHORT),
    }
}

fn request(arguments: &InferArguments, config: &ModelConfig) -> Result<ModelInferRequest, String> {
    let mut request = ModelInferRequest {
        model_name: arguments.model.clone(),
        model_version: arguments.model_version.clone(),
        parameters: parameters::read(&arguments.request.parameter)?,
        ..ModelInferRequest::default()
    };
    for (name, tensor) in input::inputs(&arguments.request, config)? {
        request.inputs.push(InferInputTensor {
            name,
            datatype: tensor.dtype().as_str().to_owned(),
            shape: tensor.shape().to_vec(),
            ..InferInputTensor::default()
        });
        request.raw_input_contents.push(tensor.data().clone());
    }
    let classes = arguments.request.classes.map(|count| {
        let count = Some(ParameterChoice::Int64Param(count.into()));
        ("classification".to_owned(), InferParameter { parameter_choice: count })
    });
    let parameters: HashMap<_, _> = classes.into_iter().collect();
    let names = match (&arguments.request.output[..], arguments.request.classes) {
        ([], Some(_)) => config.output.iter().map(|it| it.name.clone()).collect(),
        (some, _) => some.to_vec(),
    };
    let output = |name| InferRequestedOutputTensor { name, parameters: parameters.clone() };
    request.outputs = names.into_iter().map(output).collect();
    Ok(request)
}
