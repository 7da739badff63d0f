//! Questions to a running server over HTTP: by TCP, TLS or a Unix socket, each on a connection of its
//! own.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Uri, client::conn::http1, header::HOST};
use hyper_rustls::ConfigBuilderExt;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::client::{Headers, address, headers, innermost, is_encrypted, pem, tls_hint};
use troupe_options::{ConnectionArguments, UNIX_SOCKET};

/// A server that does not take the connection, or does not answer, in this time counts as absent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no answer that could be used.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// Nobody listens.
    Absent(String),
    /// The connection did not bring one.
    Broken(String),
    /// The server refuses, or the request cannot be made.
    Refused(String),
}

impl From<NoAnswer> for String {
    fn from(it: NoAnswer) -> String {
        match it {
            NoAnswer::Absent(text) | NoAnswer::Broken(text) | NoAnswer::Refused(text) => text,
        }
    }
}

/// Asks a server over HTTP.
pub(crate) struct HttpClient<'a> {
    url: &'a str,
    headers: Headers,
    /// `None`: not encrypted.
    tls: Option<TlsConnector>,
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

impl HttpClient<'_> {
    /// Reads the files that it needs; connects to nothing yet.
    pub(crate) fn new(to: &ConnectionArguments) -> Result<HttpClient<'_>, String> {
        let url = &*to.url;
        let has_files = to.ca_cert.is_some() || to.client_cert.is_some();
        if has_files && (url.starts_with(UNIX_SOCKET) || url.starts_with("http://")) {
            return Err(format!(
                "--url {url} is not encrypted: --ca-cert and --client-cert are for TLS"
            ));
        }
        let tls = match has_files || is_encrypted(url) {
            true => Some(TlsConnector::from(Arc::new(tls_config(to)?))),
            false => None,
        };
        Ok(HttpClient { url, headers: headers(&to.header)?, tls })
    }

    /// The body of the answer; one that is no success is an error with the server's text.
    pub(crate) async fn get(&self, path: &str) -> Result<Bytes, NoAnswer> {
        let late = format!("{} does not answer: not in {ANSWER_TIMEOUT:?}", self.url);
        timeout(ANSWER_TIMEOUT, self.answer(path)).await.map_err(|_| NoAnswer::Broken(late))?
    }

    async fn answer(&self, path: &str) -> Result<Bytes, NoAnswer> {
        let failed = |error: hyper::Error| {
            let why = innermost(&error);
            let url = self.url;
            NoAnswer::Broken(format!("no HTTP answer from {url}: {why} (is it the HTTP port?)"))
        };
        let socket = self.connect().await.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(failed)?;
        // It ends with the answer, and says by the sender why if there is none.
        tokio::spawn(connection);
        let host = if self.url.starts_with(UNIX_SOCKET) { "localhost" } else { address(self.url) };
        let uri: Uri = path.parse().map_err(|it| NoAnswer::Refused(format!("{path}: {it}")))?;
        let mut request = Request::get(uri).header(HOST, host);
        for (name, value) in &self.headers {
            request = request.header(name.as_str(), value.as_encoded_bytes());
        }
        let request = request.body(Empty::<Bytes>::new());
        let request =
            request.map_err(|error| NoAnswer::Refused(format!("--url {}: {error}", self.url)))?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(failed)?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let told: Option<Value> = serde_json::from_slice(&body).ok();
        let text = told.as_ref().and_then(|it| it["error"].as_str());
        let text = text.map_or_else(|| format!("{} answers {status}", self.url), str::to_owned);
        Err(NoAnswer::Refused(text))
    }

    async fn connect(&self) -> io::Result<Box<dyn Socket>> {
        if let Some(path) = self.url.strip_prefix(UNIX_SOCKET) {
            return Ok(Box::new(UnixStream::connect(path).await?));
        }
        let address = address(self.url);
        let socket = TcpStream::connect(address).await?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let host = address.rsplit_once(':').map_or(address, |it| it.0);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Box::new(tls.connect(name, socket).await?))
    }

    fn unreachable(&self, error: &io::Error) -> NoAnswer {
        let url = self.url;
        let is_unix = url.starts_with(UNIX_SOCKET);
        match error.kind() {
            io::ErrorKind::ConnectionRefused => NoAnswer::Absent(nobody(url)),
            io::ErrorKind::NotFound if is_unix => NoAnswer::Absent(nobody(url)),
            _ => {
                let why = error.to_string();
                let hint = tls_hint(&why);
                NoAnswer::Broken(format!("cannot connect to {url}: {why}{hint}"))
            }
        }
    }
}

fn nobody(url: &str) -> String {
    format!(
        "nobody listens at {url}: is the server running? (`troupe` serves HTTP on port 8000; another \
         address: `--url HOST:PORT`)"
    )
}

fn tls_config(to: &ConnectionArguments) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.expect("ring has cipher suites for both versions");
    let builder = match &to.ca_cert {
        None => builder.with_native_roots().map_err(|error| {
            format!("no roots of certificates on this system: {error}; name some: --ca-cert FILE")
        })?,
        Some(path) => {
            let wrong = |why: String| format!("--ca-cert={}: {why}", path.display());
            let text = pem("--ca-cert", path, "CERTIFICATE-----")?;
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            builder.with_root_certificates(roots)
        }
    };
    let (Some(certificate), Some(key)) = (&to.client_cert, &to.client_key) else {
        return Ok(builder.with_no_client_auth());
    };
    let wrong = |why: String| format!("--client-cert={}: {why}", certificate.display());
    let text = pem("--client-cert", certificate, "CERTIFICATE-----")?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let chain = chain.map_err(|error| wrong(error.to_string()))?;
    let text = pem("--client-key", key, "PRIVATE KEY-----")?;
    let private = PrivateKeyDer::from_pem_slice(text.as_bytes());
    let private = private.map_err(|error| format!("--client-key={}: {error}", key.display()))?;
    builder.with_client_auth_cert(chain, private).map_err(|error| wrong(error.to_string()))
}
