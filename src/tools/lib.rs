//! Asks a server that runs, over gRPC, and prints what it answers.

mod bench;
mod elements;
mod half;
mod input;
mod literal;
mod print;
mod replay;
mod shape;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, error::Error, io, time::Duration};

use tokio::{runtime::Builder, time::timeout};
use tonic::{
    Request, Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::{self, Channel, Endpoint},
};

pub use self::bench::{Ended, bench};
use self::print::Limits;
pub use self::replay::{Replayed, replay};
use troupe_options::Infer;
use troupe_proto::inference::{
    InferParameter, ModelConfig, ModelConfigRequest, ModelInferRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

/// A server that does not even take the connection in this time is not there.
const CONNECT: Duration = Duration::from_secs(10);

type Client = GrpcInferenceServiceClient<Channel>;

/// What to print of the server's answer, or why there is none: the server's own text if it is its
/// error.
pub fn infer(arguments: &Infer) -> Result<String, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let Some(limit) = arguments.timeout else { return ask(arguments).await };
        let late = |_| format!("no answer from {} within {limit:?}", arguments.url);
        timeout(limit, ask(arguments)).await.map_err(late)?
    })
}

async fn ask(arguments: &Infer) -> Result<String, String> {
    let headers = headers(&arguments.header)?;
    let mut client = connect(&arguments.url).await?;
    let told = |status: Status| told(&arguments.url, &status);
    let asked = ModelConfigRequest {
        name: arguments.model.clone(),
        version: arguments.model_version.clone(),
    };
    let config = client.model_config(with(asked, &headers)).await.map_err(told)?;
    let config = config.into_inner().config.unwrap_or_default();
    let mut request = with(request(arguments, &config)?, &headers);
    if let Some(limit) = arguments.timeout {
        // The server need not work for nobody; a second more, so that it is us who say what happened.
        request.set_timeout(limit + Duration::from_secs(1));
    }
    let answer = client.model_infer(request).await.map_err(told)?.into_inner();
    match (arguments.json, arguments.full) {
        (true, _) => print::json(&answer),
        (false, true) => print::tables(&answer, Limits::NONE),
        (false, false) => print::tables(&answer, Limits::SHORT),
    }
}

fn request(arguments: &Infer, config: &ModelConfig) -> Result<ModelInferRequest, String> {
    let mut request = ModelInferRequest {
        model_name: arguments.model.clone(),
        model_version: arguments.model_version.clone(),
        ..ModelInferRequest::default()
    };
    for (name, tensor) in input::inputs(arguments, config)? {
        request.inputs.push(InferInputTensor {
            name,
            datatype: tensor.dtype().as_str().to_owned(),
            shape: tensor.shape().to_vec(),
            ..InferInputTensor::default()
        });
        request.raw_input_contents.push(tensor.data().clone());
    }
    let classes = arguments.classes.map(|count| {
        let count = Some(ParameterChoice::Int64Param(count.into()));
        ("classification".to_owned(), InferParameter { parameter_choice: count })
    });
    let parameters: HashMap<_, _> = classes.into_iter().collect();
    let names = match (&arguments.output[..], arguments.classes) {
        ([], Some(_)) => config.output.iter().map(|it| it.name.clone()).collect(),
        (some, _) => some.to_vec(),
    };
    let output = |name| InferRequestedOutputTensor { name, parameters: parameters.clone() };
    request.outputs = names.into_iter().map(output).collect();
    Ok(request)
}

type Headers = Vec<(AsciiMetadataKey, AsciiMetadataValue)>;

fn headers(texts: &[String]) -> Result<Headers, String> {
    let one = |text: &String| {
        let (name, value) = text.split_once(':')?;
        let name = name.trim().to_ascii_lowercase().parse().ok()?;
        Some((name, value.trim().parse().ok()?))
    };
    let wrong = |text| format!("--header {text}: expected `NAME:VALUE` of ASCII characters");
    texts.iter().map(|it| one(it).ok_or_else(|| wrong(it))).collect()
}

fn with<T>(message: T, headers: &Headers) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in headers {
        request.metadata_mut().append(name.clone(), value.clone());
    }
    request
}

async fn connect(url: &str) -> Result<Client, String> {
    let channel = endpoint(url)?.connect().await;
    let channel = channel.map_err(|error| unreachable(url, &error))?;
    let client = Client::new(channel).max_decoding_message_size(usize::MAX);
    Ok(client.max_encoding_message_size(usize::MAX))
}

fn endpoint(url: &str) -> Result<Endpoint, String> {
    let address = address(url);
    let wrong = || format!("--url {url}: expected `HOST:PORT`");
    if address.contains("://") {
        return Err(wrong());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| wrong())?;
    Ok(endpoint.connect_timeout(CONNECT))
}

/// Without the scheme.
fn address(url: &str) -> &str {
    let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("grpc://"));
    address.unwrap_or(url).trim_end_matches('/')
}

fn unreachable(url: &str, error: &transport::Error) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if kind == Some(io::ErrorKind::ConnectionRefused) {
            return format!(
                "nobody listens at {url}: is the server running? (`troupe` serves gRPC on port \
                 8001; another address: `--url HOST:PORT`)"
            );
        }
        why = error.to_string();
        source = error.source();
    }
    format!("cannot connect to {url}: {why}")
}

/// The server's own text; what never came from a server has a cause.
fn told(url: &str, status: &Status) -> String {
    match (status.message(), status.source()) {
        (text, Some(_)) => format!("no gRPC answer from {url}: {text} (is it the gRPC port?)"),
        ("", None) => status.code().description().to_owned(),
        (text, None) => text.to_owned(),
    }
}
