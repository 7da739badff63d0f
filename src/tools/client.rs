//! The gRPC connection to a running server: address, headers, connect, and what its errors say.

use std::{error::Error, io, time::Duration};

use tonic::{
    Request, Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::{self, Channel, Endpoint},
};

use troupe_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;

/// A server that does not take the connection in this time counts as absent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks over one connection.
pub(crate) type Client = GrpcInferenceServiceClient<Channel>;

/// Metadata of every request, as `--header` gives it.
pub(crate) type Headers = Vec<(AsciiMetadataKey, AsciiMetadataValue)>;

/// Reads every `--header NAME:VALUE`.
pub(crate) fn headers(texts: &[String]) -> Result<Headers, String> {
    let one = |text: &String| {
        let (name, value) = text.split_once(':')?;
        let name = name.trim().to_ascii_lowercase().parse().ok()?;
        Some((name, value.trim().parse().ok()?))
    };
    let wrong = |text| format!("--header {text}: expected `NAME:VALUE` of ASCII characters");
    texts.iter().map(|it| one(it).ok_or_else(|| wrong(it))).collect()
}

/// The message as a request with these headers.
pub(crate) fn with<T>(message: T, headers: &Headers) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in headers {
        request.metadata_mut().append(name.clone(), value.clone());
    }
    request
}

/// Connects; messages may have any size.
pub(crate) async fn connect(url: &str) -> Result<Client, String> {
    let channel = endpoint(url)?.connect().await;
    let channel = channel.map_err(|error| unreachable(url, &error))?;
    let client = Client::new(channel).max_decoding_message_size(usize::MAX);
    Ok(client.max_encoding_message_size(usize::MAX))
}

/// The server at `HOST:PORT`, not connected yet.
pub(crate) fn endpoint(url: &str) -> Result<Endpoint, String> {
    let address = address(url);
    let wrong = || format!("--url {url}: expected `HOST:PORT`");
    if address.contains("://") {
        return Err(wrong());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| wrong())?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT))
}

/// The address without its scheme.
pub(crate) fn address(url: &str) -> &str {
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

/// The server's own text of an error; an error that no server sent names its cause.
pub(crate) fn error_text(url: &str, status: &Status) -> String {
    match (status.message(), status.source()) {
        (text, Some(_)) => format!("no gRPC answer from {url}: {text} (is it the gRPC port?)"),
        ("", None) => status.code().description().to_owned(),
        (text, None) => text.to_owned(),
    }
}
