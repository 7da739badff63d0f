//! The gRPC connection to a running server: address, TLS, headers, connect, and what its errors say.

use std::{error::Error, fs, io, path::Path, time::Duration};

use tonic::{
    Request, Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use troupe_options::{ConnectionArguments, UNIX_SOCKET};
use troupe_proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;

/// A server that does not take the connection in this time counts as absent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What may be on its way to us unread, and in one frame: large tensors in few parts.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const MAX_FRAME_BYTES: u32 = 1 << 20;

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
pub(crate) async fn connect(to: &ConnectionArguments) -> Result<Client, String> {
    let channel = endpoint(to)?.connect().await;
    let channel = channel.map_err(|error| unreachable(&to.url, &error))?;
    let client = Client::new(channel).max_decoding_message_size(usize::MAX);
    Ok(client.max_encoding_message_size(usize::MAX))
}

/// The server, not connected yet.
pub(crate) fn endpoint(to: &ConnectionArguments) -> Result<Endpoint, String> {
    let ConnectionArguments { url, ca_cert, client_cert, .. } = to;
    let wrong = || format!("--url {url}: expected `HOST:PORT`, `https://HOST:PORT` or `unix:PATH`");
    let has_files = ca_cert.is_some() || client_cert.is_some();
    let is_encrypted = has_files || is_encrypted(url);
    let target = if url.starts_with(UNIX_SOCKET) {
        url.clone()
    } else {
        let address = address(url);
        if address.contains("://") {
            return Err(wrong());
        }
        format!("{}://{address}", if is_encrypted { "https" } else { "http" })
    };
    if has_files && (!target.starts_with("https") || url.starts_with("http://")) {
        return Err(format!(
            "--url {url} is not encrypted: --ca-cert and --client-cert are for TLS"
        ));
    }
    let endpoint = Endpoint::from_shared(target).map_err(|_| wrong())?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES);
    if !is_encrypted {
        return Ok(endpoint);
    }
    endpoint.tls_config(tls(to)?).map_err(|error| {
        let why = innermost(&error);
        match &to.client_key {
            Some(key) if why.contains("KeyMismatch") => {
                format!("--client-key={}: it is not the key of --client-cert", key.display())
            }
            _ => format!("--url {url}: {why}"),
        }
    })
}

/// Whether its scheme says that the server encrypts.
pub(crate) fn is_encrypted(url: &str) -> bool {
    ["https://", "grpcs://"].iter().any(|it| url.starts_with(it))
}

/// The address without its scheme.
pub(crate) fn address(url: &str) -> &str {
    let schemes = ["http://", "grpc://", "https://", "grpcs://"];
    let address = schemes.iter().find_map(|it| url.strip_prefix(it));
    address.unwrap_or(url).trim_end_matches('/')
}

fn tls(to: &ConnectionArguments) -> Result<ClientTlsConfig, String> {
    let config = match &to.ca_cert {
        None => ClientTlsConfig::new().with_native_roots(),
        Some(path) => {
            let roots = Certificate::from_pem(pem("--ca-cert", path, "CERTIFICATE-----")?);
            ClientTlsConfig::new().ca_certificate(roots)
        }
    };
    let (Some(certificate), Some(key)) = (&to.client_cert, &to.client_key) else {
        return Ok(config);
    };
    let certificate = pem("--client-cert", certificate, "CERTIFICATE-----")?;
    let key = pem("--client-key", key, "PRIVATE KEY-----")?;
    Ok(config.identity(Identity::from_pem(certificate, key)))
}

/// The contents of a PEM file, which must hold this.
pub(crate) fn pem(flag: &str, path: &Path, expected: &str) -> Result<String, String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("{flag}={}: {error}", path.display()))?;
    match text.contains(expected) {
        true => Ok(text),
        false => Err(format!(
            "{flag}={}: there is no `{}` in it",
            path.display(),
            expected.trim_end_matches('-')
        )),
    }
}

/// The text of what an error comes from.
pub(crate) fn innermost(error: &dyn Error) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        why = error.to_string();
        source = error.source();
    }
    why
}

fn unreachable(url: &str, error: &transport::Error) -> String {
    let mut source = error.source();
    while let Some(error) = source {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let is_absent = match kind {
            Some(io::ErrorKind::ConnectionRefused) => true,
            Some(io::ErrorKind::NotFound) => url.starts_with(UNIX_SOCKET),
            _ => false,
        };
        if is_absent {
            return format!(
                "nobody listens at {url}: is the server running? (`troupe` serves gRPC on port \
                 8001; another address: `--url HOST:PORT`)"
            );
        }
        source = error.source();
    }
    let why = innermost(error);
    format!("cannot connect to {url}: {why}{}", tls_hint(&why))
}

/// What to do about an error of TLS; empty where it says so itself, or is of something else.
pub(crate) fn tls_hint(why: &str) -> &'static str {
    let has = |text: &str| why.contains(text);
    if has("UnknownIssuer") {
        " (`--ca-cert FILE` names the roots that its certificate may come from)"
    } else if has("CaUsedAsEndEntity") {
        " (the server's own certificate is marked as that of a CA, as `openssl req -x509` makes them: \
         make it with `-addext basicConstraints=critical,CA:FALSE`, or have a CA sign one)"
    } else if has("received fatal alert") {
        " (if the server wants clients to show a certificate: `--client-cert FILE --client-key \
         FILE`, of the roots that it trusts)"
    } else if has("InvalidContentType") || has("handshake eof") {
        " (it seems that this port is not encrypted: `--url HOST:PORT`, without `--ca-cert`)"
    } else {
        ""
    }
}

/// The server's own text of an error; an error that no server sent names its cause.
pub(crate) fn error_text(url: &str, status: &Status) -> String {
    match (status.message(), status.source()) {
        (text, Some(source)) => {
            let why = innermost(source);
            let hint = match tls_hint(&why) {
                // A server that ends the connection resets it at times before its alert is read.
                "" if is_encrypted(url) => {
                    " (is it the gRPC port? if the server wants clients to show a certificate: \
                     `--client-cert FILE --client-key FILE`)"
                }
                "" => " (is it the gRPC port? if it is encrypted: `--url https://HOST:PORT`)",
                hint => hint,
            };
            let why = if why == text { String::new() } else { format!(": {why}") };
            format!("no gRPC answer from {url}: {text}{why}{hint}")
        }
        ("", None) => status.code().description().to_owned(),
        (text, None) => text.to_owned(),
    }
}
