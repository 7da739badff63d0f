//! Certificates that tests make: an authority, what it issues, and clients that look at both.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};

use super::PATIENCE;

/// Issues certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, in PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this machine, under a name.
    pub(crate) fn issue(&self, name: &str) -> Issued {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Issued {
    /// Writes `NAME.pem` and `NAME.key`; answers both paths.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let paths = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        std::fs::write(&paths.0, &self.certificate).unwrap();
        std::fs::write(&paths.1, &self.key).unwrap();
        paths
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        let found = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        found.collect::<Result<_, _>>().unwrap()
    }

    fn secret(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}

/// A client of TLS that trusts one authority.
#[derive(Clone)]
pub(crate) struct TlsClient(Arc<ClientConfig>);

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

impl TlsClient {
    pub(crate) fn new(authority: &Authority, shown: Option<&Issued>, protocols: &[&str]) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match shown {
            Some(it) => builder.with_client_auth_cert(it.chain(), it.secret()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        TlsClient(Arc::new(config))
    }

    /// A connection; its handshake happens when something is read or written.
    pub(crate) fn connect(&self, address: SocketAddr) -> TlsStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::from(address.ip());
        StreamOwned::new(ClientConnection::new(self.0.clone(), name).unwrap(), stream)
    }

    /// Asks by HTTP over a connection of its own; what came back, or why nothing did.
    pub(crate) fn get(&self, address: SocketAddr, path: &str) -> std::io::Result<String> {
        let mut stream = self.connect(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Takes TLS in front of a plain listener, from clients with a certificate of the same authority.
pub(crate) fn tls_proxy(authority: &Authority, to: SocketAddr, protocol: &str) -> SocketAddr {
    let issued = authority.issue("the proxy");
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build();
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_client_cert_verifier(verifier.unwrap());
    let mut config = builder.with_single_cert(issued.chain(), issued.secret()).unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let config = Arc::new(config);
        for stream in listener.incoming() {
            let (stream, config) = (stream.unwrap(), config.clone());
            thread::spawn(move || pump(stream, config, TcpStream::connect(to).unwrap()));
        }
    });
    address
}

/// Carries bytes both ways until either side ends.
fn pump(client: TcpStream, config: Arc<ServerConfig>, server: TcpStream) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _ = runtime.block_on(async {
        client.set_nonblocking(true)?;
        server.set_nonblocking(true)?;
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        let mut client = acceptor.accept(tokio::net::TcpStream::from_std(client)?).await?;
        let mut server = tokio::net::TcpStream::from_std(server)?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await
    });
}

/// The certificate the server has shown, and the protocol it has chosen; the handshake is made here.
pub(crate) fn shown(stream: &mut TlsStream) -> std::io::Result<(Vec<u8>, Option<String>)> {
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    let certificate = stream.conn.peer_certificates().unwrap()[0].to_vec();
    let protocol = stream.conn.alpn_protocol().map(|it| String::from_utf8(it.to_vec()).unwrap());
    Ok((certificate, protocol))
}
