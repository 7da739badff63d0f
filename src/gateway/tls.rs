//! TLS of a listener: its certificate, and whose certificates of clients it takes; both may be
//! replaced while it serves.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, InconsistentKeys, RootCertStore, ServerConfig,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

/// What a client may take for its handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(ring::default_provider()));

/// The contents of the PEM files of one listener.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pem {
    /// The certificate, and those between it and its root.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The roots of clients' certificates, where clients must have one.
    pub client_roots: Option<Vec<u8>>,
}

/// Which of the files is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemPart {
    /// `Pem::certificate`.
    Certificate,
    /// `Pem::key`.
    Key,
    /// `Pem::client_roots`.
    ClientRoots,
}

/// Why a listener cannot be encrypted with what its files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemProblem {
    /// The file.
    pub part: PemPart,
    /// What is wrong with it.
    pub why: String,
}

/// What listeners encrypt with.
pub struct Tls {
    certificate: Arc<CurrentCertificate>,
    /// Where clients must show a certificate.
    clients: Option<Arc<CurrentClientVerifier>>,
}

impl Tls {
    /// What these files say.
    pub fn new(pem: &Pem) -> Result<Tls, PemProblem> {
        let certificate = CurrentCertificate(ArcSwap::new(Arc::new(certified_key(pem)?)));
        let clients = match &pem.client_roots {
            Some(roots) => {
                let verifier = ArcSwap::from_pointee(client_verifier(roots)?);
                Some(Arc::new(CurrentClientVerifier(verifier)))
            }
            None => None,
        };
        Ok(Tls { certificate: Arc::new(certificate), clients })
    }

    /// New connections get what these files say; if something is wrong with them, nothing changes.
    pub fn replace(&self, pem: &Pem) -> Result<(), PemProblem> {
        let key = certified_key(pem)?;
        if let (Some(current), Some(roots)) = (&self.clients, &pem.client_roots) {
            current.0.store(Arc::new(client_verifier(roots)?));
        }
        self.certificate.0.store(Arc::new(key));
        Ok(())
    }

    /// For a listener that speaks these protocols, the best first: TLS 1.2 and 1.3.
    pub(crate) fn server_config(&self, protocols: &[&[u8]]) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(PROVIDER.clone());
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.expect("ring has cipher suites for both versions");
        let mut config = match &self.clients {
            Some(clients) => builder.with_client_cert_verifier(clients.clone()),
            None => builder.with_no_client_auth(),
        }
        .with_cert_resolver(self.certificate.clone());
        if self.clients.is_some() {
            // A session that is resumed shows no certificate: whoever was let in once would be let
            // in after the roots were replaced.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
        config
    }
}

fn certified_key(pem: &Pem) -> Result<CertifiedKey, PemProblem> {
    let wrong = |part, why: String| PemProblem { part, why };
    let certificate = |why| wrong(PemPart::Certificate, why);
    let key = |why| wrong(PemPart::Key, why);
    let chain = certificates(&pem.certificate).map_err(certificate)?;
    let secret = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            key("it has no private key in PEM without a password".to_owned())
        }
        error => key(format!("it is no PEM: {error}")),
    })?;
    let signer = PROVIDER.key_provider.load_private_key(secret);
    let signer = signer.map_err(|error| key(format!("its private key cannot be used: {error}")))?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => {
            Err(key("it is not the private key of the certificate".to_owned()))
        }
        Err(error) => Err(certificate(format!("its first certificate is wrong: {error}"))),
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("it is no PEM: {error}"))?;
    if found.is_empty() {
        return Err("it has no certificate in PEM".to_owned());
    }
    Ok(found)
}

fn client_verifier(pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, PemProblem> {
    let wrong = |why| PemProblem { part: PemPart::ClientRoots, why };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(wrong)? {
        let added = roots.add(certificate);
        added.map_err(|error| wrong(format!("a certificate in it is no root: {error}")))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), PROVIDER.clone());
    builder.build().map_err(|error| wrong(error.to_string()))
}

/// The certificate that new connections get.
struct CurrentCertificate(ArcSwap<CertifiedKey>);

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CurrentCertificate")
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Who checks the certificates of new clients.
#[derive(Debug)]
struct CurrentClientVerifier(ArcSwap<Arc<dyn ClientCertVerifier>>);

impl ClientCertVerifier for CurrentClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // They may be replaced; clients that get no names send the certificate they have.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.load().verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.load().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.load().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(pem: Pem) -> PemProblem {
        Tls::new(&pem).err().expect("something is wrong with it")
    }

    #[test]
    fn files_without_pem_are_named() {
        let empty = problem(Pem::default());
        assert_eq!(empty.part, PemPart::Certificate);
        assert_eq!(empty.why, "it has no certificate in PEM");
        let torn = b"-----BEGIN CERTIFICATE-----\nAAAA\n".to_vec();
        let torn = problem(Pem { certificate: torn, ..Pem::default() });
        assert!(torn.why.starts_with("it is no PEM"), "{}", torn.why);
        let roots = client_verifier(b"nothing").unwrap_err();
        assert_eq!(roots.part, PemPart::ClientRoots);
    }
}
