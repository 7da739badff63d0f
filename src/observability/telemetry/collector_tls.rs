//! TLS to a collector: whose certificate it may have, and which one it is shown.

use std::{error::Error, fs, pin::Pin, sync::Arc, time::Duration};

use hyper_rustls::{ConfigBuilderExt, HttpsConnectorBuilder};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, hyper::HyperClient};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

/// PEM files, as the standard variables name them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CollectorTls {
    /// The roots of the collector's certificate; without it those of the system.
    roots: Option<NamedFile>,
    /// The certificate that the collector is shown.
    certificate: Option<NamedFile>,
    /// Its private key.
    key: Option<NamedFile>,
}

/// A file, and the variable that names it.
#[derive(Clone, Debug, PartialEq)]
struct NamedFile {
    variable: String,
    path: String,
}

impl CollectorTls {
    /// What the environment says; variables of traces come before those of everything.
    pub(super) fn new(variable: &dyn Fn(&str) -> Option<String>) -> CollectorTls {
        let find = |what: &str| {
            ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].iter().find_map(|prefix| {
                let name = format!("{prefix}{what}");
                let path = variable(&name)?.trim().to_owned();
                Some(NamedFile { variable: name, path })
            })
        };
        CollectorTls {
            roots: find("CERTIFICATE"),
            certificate: find("CLIENT_CERTIFICATE"),
            key: find("CLIENT_KEY"),
        }
    }

    /// A client of HTTP that encrypts; an answer may take `timeout`. Why it fails is kept in
    /// `failure`.
    pub(super) fn http(
        &self,
        timeout: Duration,
        failure: &SendFailure,
    ) -> Result<impl HttpClient + 'static, String> {
        let identity = self.identity()?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.expect("ring has cipher suites for both versions");
        let builder = match &self.roots {
            Some(file) => builder.with_root_certificates(file.roots()?),
            None => builder.with_native_roots().map_err(|error| {
                format!(
                    "no roots of certificates on this system: {error}; name a file of them in \
                         OTEL_EXPORTER_OTLP_CERTIFICATE"
                )
            })?,
        };
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificate.certificates()?;
                let config = builder.with_client_auth_cert(chain, key.private_key()?);
                config.map_err(|error| certificate.wrong(&error))?
            }
        };
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        let client = HyperClient::new(connector.enable_http1().build(), timeout, None);
        Ok(Explained { client, failure: failure.clone() })
    }

    /// What a client of gRPC encrypts with.
    pub(super) fn grpc(&self) -> Result<ClientTlsConfig, String> {
        let identity = self.identity()?;
        let config = match &self.roots {
            Some(file) => {
                // Read here, so that it is named if it is wrong.
                file.roots()?;
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(file.read()?))
            }
            None => ClientTlsConfig::new().with_native_roots(),
        };
        Ok(match identity {
            None => config,
            Some((certificate, key)) => {
                // As above.
                certificate.certificates()?;
                key.private_key()?;
                config.identity(Identity::from_pem(certificate.read()?, key.read()?))
            }
        })
    }

    fn identity(&self) -> Result<Option<(&NamedFile, &NamedFile)>, String> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (Some(one), None) | (None, Some(one)) => Err(format!(
                "{} is given alone: a certificate and its key are needed, \
                 OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY",
                one.variable
            )),
        }
    }
}

/// Why the last request failed: the exporter of OTLP says of all causes only `network error`.
#[derive(Clone, Debug, Default)]
pub(super) struct SendFailure(Arc<Mutex<Option<String>>>);

impl SendFailure {
    /// The text of its innermost cause, once.
    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }

    fn keep(&self, error: &(dyn Error + 'static)) {
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        *self.0.lock() = Some(cause.to_string());
    }
}

/// A client that keeps why it failed.
#[derive(Debug)]
struct Explained<C> {
    client: C,
    failure: SendFailure,
}

/// What the trait's macro makes of an `async fn`.
type Sent<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl<C: HttpClient> HttpClient for Explained<C> {
    fn send_bytes<'life0, 'async_trait>(&'life0 self, request: Request<Bytes>) -> Sent<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let sent = self.client.send_bytes(request).await;
            sent.inspect_err(|error| self.failure.keep(&**error))
        })
    }
}

impl NamedFile {
    fn read(&self) -> Result<Vec<u8>, String> {
        fs::read(&self.path).map_err(|error| self.wrong(&error))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let key = PrivateKeyDer::from_pem_slice(&self.read()?);
        key.map_err(|error| match error {
            pem::Error::NoItemsFound => self.wrong(&"it has no private key in PEM"),
            error => self.wrong(&error),
        })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let bytes = self.read()?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let found = found.map_err(|error| self.wrong(&error))?;
        if found.is_empty() {
            return Err(self.wrong(&"it has no certificate in PEM"));
        }
        Ok(found)
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.wrong(&error))?;
        }
        Ok(roots)
    }

    fn wrong(&self, why: &impl ToString) -> String {
        format!("{}={}: {}", self.variable, self.path, why.to_string())
    }
}
