//! TLS as a client meets it: certificates shown, wanted, replaced; garbage and silence.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use crate::support::{
    PATIENCE, Repository, Server,
    certificates::{Authority, TlsClient, shown},
    eventually, native, until,
};

/// A server all of whose ports encrypt, and who has issued its certificate.
pub(crate) struct Encrypted {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
}

impl Encrypted {
    /// Clients must show a certificate of the same authority if it is `mutual`.
    pub(crate) fn start(mutual: bool) -> Encrypted {
        let authority = Authority::new("of the server");
        let id = native("identity", "x:FP32[-1] -> y:FP32[-1]");
        let repository = Repository::of([("identity", id)]);
        authority.issue("the first").write(&repository.beside(""), "server");
        fs::write(repository.beside("roots.pem"), authority.pem()).unwrap();
        let mut flags = vec!["--metrics-use-ssl=true".to_owned()];
        for port in ["http", "grpc"] {
            flags.push(format!("--{port}-use-ssl=true"));
            flags.push(format!("--{port}-server-cert=server.pem"));
            flags.push(format!("--{port}-server-key=server.key"));
        }
        if mutual {
            for port in ["http", "grpc", "metrics"] {
                flags.push(format!("--{port}-use-ssl-mutual=true"));
            }
            flags.extend(
                ["--http-root-cert=roots.pem", "--grpc-root-cert=roots.pem"].map(Into::into),
            );
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::launch(repository, &flags, &[]);
        let encrypted = Encrypted { server, authority };
        let client = encrypted.client();
        until("the server to be ready", || {
            let answer = client.get(encrypted.server.http.0, "/v2/health/ready");
            answer.is_ok_and(|it| it.starts_with("HTTP/1.1 200"))
        });
        encrypted
    }

    /// Trusts the authority, and shows a certificate of it.
    pub(crate) fn client(&self) -> TlsClient {
        TlsClient::new(&self.authority, Some(&self.authority.issue("a client")), &[])
    }

    pub(crate) fn ports(&self) -> [SocketAddr; 3] {
        [self.server.http.0, self.server.grpc, self.server.metrics.0]
    }

    /// It still answers, and nothing in it has panicked.
    fn is_well(&self) {
        let live = self.client().get(self.server.http.0, "/v2/health/live").unwrap();
        assert!(live.starts_with("HTTP/1.1 200"), "{live}");
        assert!(!self.server.log().contains("panicked at"));
    }
}

#[test]
fn each_port_shows_its_certificate_and_speaks_its_protocol() {
    let encrypted = Encrypted::start(false);
    let protocols = ["h2", "http/1.1"];
    let client = TlsClient::new(&encrypted.authority, None, &protocols);
    for (address, expected) in encrypted.ports().into_iter().zip(["http/1.1", "h2", "http/1.1"]) {
        let (_, protocol) = shown(&mut client.connect(address)).unwrap();
        assert_eq!(protocol.as_deref(), Some(expected));
    }
    let metrics = client_without(&encrypted).get(encrypted.server.metrics.0, "/metrics").unwrap();
    assert!(metrics.contains("nv_inference_request_success"), "{metrics}");
    // Whoever trusts another authority does not talk to it.
    let stranger = TlsClient::new(&Authority::new("another"), None, &[]);
    for address in encrypted.ports() {
        assert!(shown(&mut stranger.connect(address)).is_err());
    }
    encrypted.is_well();
}

fn client_without(encrypted: &Encrypted) -> TlsClient {
    TlsClient::new(&encrypted.authority, None, &[])
}

#[test]
fn with_mutual_tls_only_certificates_of_the_root_are_let_in() {
    let encrypted = Encrypted::start(true);
    let other = Authority::new("another").issue("of nobody");
    let stranger = TlsClient::new(&encrypted.authority, Some(&other), &[]);
    for address in [encrypted.server.http.0, encrypted.server.metrics.0] {
        assert!(encrypted.client().get(address, "/metrics").is_ok());
        for refused in [&client_without(&encrypted), &stranger] {
            assert!(refused.get(address, "/v2/health/live").is_err());
        }
    }
    for refused in [client_without(&encrypted), stranger] {
        // In TLS 1.3 the client hears of it with the first answer.
        let mut stream = refused.connect(encrypted.server.grpc);
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert!(stream.read(&mut [0; 64]).is_err());
    }
    encrypted.is_well();
}

#[test]
fn certificates_are_read_again_while_the_server_runs() {
    let encrypted = Encrypted::start(false);
    let (server, client) = (&encrypted.server, client_without(&encrypted));
    let folder = server.repository.beside("");
    let serial = |address| shown(&mut client.connect(address)).unwrap().0;
    let first = encrypted.ports().map(serial);
    let mut old = client.connect(server.http.0);
    write!(old, "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(old.read(&mut [0; 1024]).unwrap() > 12);
    // A key that is not that of the certificate: what was there before stays.
    fs::write(folder.join("server.key"), &encrypted.authority.issue("x").key).unwrap();
    server.logged("the certificate in use stays: --grpc-server-key=server.key: it is not the");
    assert_eq!(encrypted.ports().map(serial), first);
    fs::write(folder.join("server.pem"), "nothing").unwrap();
    server.logged("--http-server-cert=server.pem: it has no certificate in PEM");
    assert_eq!(encrypted.ports().map(serial), first);
    encrypted.authority.issue("the second").write(&folder, "server");
    let second = eventually("the second certificate", || {
        let now = encrypted.ports().map(serial);
        (0..3).all(|port| now[port] != first[port]).then_some(now)
    });
    assert!(second.iter().all(|it| *it == second[0]), "the ports share it");
    // A connection that was open goes on.
    write!(old, "GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    encrypted.is_well();
}

#[test]
fn roots_of_clients_are_replaced_too() {
    let encrypted = Encrypted::start(true);
    let server = &encrypted.server;
    let next = Authority::new("the next");
    let shows = TlsClient::new(&encrypted.authority, Some(&next.issue("a client")), &[]);
    assert!(shows.get(server.http.0, "/v2/health/live").is_err());
    fs::write(server.repository.beside("roots.pem"), next.pem()).unwrap();
    until("the new root to count", || shows.get(server.http.0, "/v2/health/live").is_ok());
    assert!(encrypted.client().get(server.http.0, "/v2/health/live").is_err());
}

#[test]
fn what_is_no_tls_ends_its_connection_and_nothing_else() {
    let encrypted = Encrypted::start(false);
    let long = vec![0x16; 1 << 20];
    let hello = [0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3];
    for address in encrypted.ports() {
        let plain = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n".as_slice();
        let h2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
        let empty = b"".as_slice();
        for sent in [plain, h2, &[0xff; 100], &long, &[0; 7], empty] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(sent);
            if sent.len() < 10 {
                drop(stream);
                continue;
            }
            // At most an alert comes back, then the end.
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() < 16, "{answer:?}");
        }
    }
    // A handshake that is begun and left ends by itself.
    let open = encrypted.ports().map(|address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&hello).unwrap();
        stream
    });
    encrypted.is_well();
    for mut stream in open {
        let ended = stream.read(&mut [0; 64]);
        assert!(!ended.is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock));
    }
    encrypted.is_well();
}

#[test]
fn files_that_are_missing_or_wrong_are_named_at_start() {
    let repository = Repository::new();
    let authority = Authority::new("of the server");
    authority.issue("one").write(&repository.beside(""), "one");
    authority.issue("two").write(&repository.beside(""), "two");
    fs::write(repository.beside("text.pem"), "no certificate").unwrap();
    for (flags, expected) in [
        ("--grpc-use-ssl=true", "--grpc-use-ssl requires --grpc-server-cert"),
        (
            "--grpc-use-ssl=true --grpc-server-cert=nowhere.pem --grpc-server-key=one.key",
            "--grpc-server-cert=nowhere.pem: No such file",
        ),
        (
            "--http-use-ssl=true --http-server-cert=one.pem --http-server-key=two.key",
            "--http-server-key=two.key: it is not the private key of the certificate",
        ),
        (
            "--http-use-ssl=true --http-server-cert=text.pem --http-server-key=one.key",
            "--http-server-cert=text.pem: it has no certificate in PEM",
        ),
        (
            "--http-use-ssl=true --http-server-cert=one.pem --http-server-key=one.pem",
            "--http-server-key=one.pem: it has no private key in PEM",
        ),
        (
            "--grpc-use-ssl-mutual=true --grpc-server-cert=one.pem --grpc-server-key=one.key",
            "--grpc-use-ssl-mutual requires --grpc-root-cert",
        ),
        (
            "--grpc-use-ssl-mutual=true --grpc-server-cert=one.pem --grpc-server-key=one.key \
             --grpc-root-cert=text.pem",
            "--grpc-root-cert=text.pem: it has no certificate in PEM",
        ),
        (
            "--metrics-use-ssl=true --metrics-server-cert=one.pem --metrics-server-key=/",
            "--metrics-server-key=/: Is a directory",
        ),
    ] {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let ended = Server::fails(&repository, &flags);
        assert_eq!(ended.code, Some(1), "{flags:?}: {}", ended.output);
        assert!(ended.output.contains(expected), "{flags:?}: {}", ended.output);
    }
}
