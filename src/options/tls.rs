//! The flags of TLS: which port is encrypted, with which certificate, and whose clients it lets in.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::switch;

/// Encryption of the ports: Triton's flags for gRPC, and the same for the other two.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Encryption")]
pub struct TlsArguments {
    /// Encrypt the gRPC port
    #[arg(long, value_parser = switch, default_value = "false", action = ArgAction::Set)]
    pub grpc_use_ssl: bool,
    /// Encrypt the gRPC port, and let in only clients with a certificate of --grpc-root-cert
    #[arg(long, value_parser = switch)]
    pub grpc_use_ssl_mutual: Option<bool>,
    /// PEM file of the gRPC port's certificate, those between it and its root behind it
    #[arg(long, value_name = "FILE")]
    pub grpc_server_cert: Option<PathBuf>,
    /// PEM file of the private key of --grpc-server-cert
    #[arg(long, value_name = "FILE")]
    pub grpc_server_key: Option<PathBuf>,
    /// PEM file of the roots that certificates of gRPC clients come from
    #[arg(long, value_name = "FILE")]
    pub grpc_root_cert: Option<PathBuf>,
    /// Encrypt the HTTP port
    #[arg(long, value_parser = switch, default_value = "false", action = ArgAction::Set)]
    pub http_use_ssl: bool,
    /// Encrypt the HTTP port, and let in only clients with a certificate of --http-root-cert
    #[arg(long, value_parser = switch)]
    pub http_use_ssl_mutual: Option<bool>,
    /// PEM file of the HTTP port's certificate, those between it and its root behind it
    #[arg(long, value_name = "FILE")]
    pub http_server_cert: Option<PathBuf>,
    /// PEM file of the private key of --http-server-cert
    #[arg(long, value_name = "FILE")]
    pub http_server_key: Option<PathBuf>,
    /// PEM file of the roots that certificates of HTTP clients come from
    #[arg(long, value_name = "FILE")]
    pub http_root_cert: Option<PathBuf>,
    /// Encrypt the metrics port
    #[arg(long, value_parser = switch, default_value = "false", action = ArgAction::Set)]
    pub metrics_use_ssl: bool,
    /// Encrypt the metrics port, and let in only clients with a certificate of --metrics-root-cert
    #[arg(long, value_parser = switch)]
    pub metrics_use_ssl_mutual: Option<bool>,
    /// PEM file of the metrics port's certificate [default: that of the HTTP port, with its key]
    #[arg(long, value_name = "FILE")]
    pub metrics_server_cert: Option<PathBuf>,
    /// PEM file of the private key of --metrics-server-cert
    #[arg(long, value_name = "FILE")]
    pub metrics_server_key: Option<PathBuf>,
    /// PEM file of the roots that certificates of metrics clients come from [default: as for HTTP]
    #[arg(long, value_name = "FILE")]
    pub metrics_root_cert: Option<PathBuf>,
}

/// A file that a flag names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFile {
    /// As it is written: `--grpc-server-cert`.
    pub flag: &'static str,
    /// Where it is.
    pub path: PathBuf,
}

/// The files of one encrypted port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and its root.
    pub certificate: PemFile,
    /// Its private key.
    pub key: PemFile,
    /// The roots that certificates of clients come from, where clients must have one.
    pub client_roots: Option<PemFile>,
}

/// What the flags say about one port.
struct PortFlags<'a> {
    /// As in the names of its flags: `grpc`.
    port: &'static str,
    use_ssl: bool,
    mutual: Option<bool>,
    /// Each with its flag.
    certificate: (&'static str, &'a Option<PathBuf>),
    key: (&'static str, &'a Option<PathBuf>),
    roots: (&'static str, &'a Option<PathBuf>),
}

impl TlsArguments {
    /// The files of the gRPC port if it is encrypted, or what is missing.
    pub fn grpc(&self) -> Result<Option<TlsFiles>, String> {
        self.grpc_flags().files()
    }

    /// The files of the HTTP port if it is encrypted, or what is missing.
    pub fn http(&self) -> Result<Option<TlsFiles>, String> {
        self.http_flags().files()
    }

    /// The files of the metrics port if it is encrypted, or what is missing.
    pub fn metrics(&self) -> Result<Option<TlsFiles>, String> {
        self.metrics_flags().files()
    }

    /// Flags of files that are not looked at because their port is not encrypted.
    pub fn without_effect(&self) -> Vec<&'static str> {
        // A file of HTTP may be there for the metrics.
        let http_serves_metrics = self.metrics_flags().is_on();
        // What metrics would take of HTTP is a matter of HTTP.
        let ports = [self.grpc_flags(), self.http_flags(), self.own_metrics_flags()];
        let plain = ports.into_iter().filter(|it| !it.is_on());
        let plain = plain.filter(|it| it.port != "http" || !http_serves_metrics);
        let files = plain.flat_map(|it| [it.certificate, it.key, it.roots]);
        files.filter(|(_, path)| path.is_some()).map(|(flag, _)| flag).collect()
    }

    fn grpc_flags(&self) -> PortFlags<'_> {
        PortFlags {
            port: "grpc",
            use_ssl: self.grpc_use_ssl,
            mutual: self.grpc_use_ssl_mutual,
            certificate: ("--grpc-server-cert", &self.grpc_server_cert),
            key: ("--grpc-server-key", &self.grpc_server_key),
            roots: ("--grpc-root-cert", &self.grpc_root_cert),
        }
    }

    fn http_flags(&self) -> PortFlags<'_> {
        PortFlags {
            port: "http",
            use_ssl: self.http_use_ssl,
            mutual: self.http_use_ssl_mutual,
            certificate: ("--http-server-cert", &self.http_server_cert),
            key: ("--http-server-key", &self.http_server_key),
            roots: ("--http-root-cert", &self.http_root_cert),
        }
    }

    /// Without what is HTTP's.
    fn own_metrics_flags(&self) -> PortFlags<'_> {
        PortFlags {
            port: "metrics",
            use_ssl: self.metrics_use_ssl,
            mutual: self.metrics_use_ssl_mutual,
            certificate: ("--metrics-server-cert", &self.metrics_server_cert),
            key: ("--metrics-server-key", &self.metrics_server_key),
            roots: ("--metrics-root-cert", &self.metrics_root_cert),
        }
    }

    fn metrics_flags(&self) -> PortFlags<'_> {
        let mut flags = self.own_metrics_flags();
        let http = self.http_flags();
        if flags.certificate.1.is_none() && flags.key.1.is_none() && http.certificate.1.is_some() {
            (flags.certificate, flags.key) = (http.certificate, http.key);
        }
        if flags.roots.1.is_none() && http.roots.1.is_some() {
            flags.roots = http.roots;
        }
        flags
    }
}

impl PortFlags<'_> {
    /// Any use of the mutual flag encrypts, also `=false`: so does Triton's.
    fn is_on(&self) -> bool {
        self.use_ssl || self.mutual.is_some()
    }

    fn files(&self) -> Result<Option<TlsFiles>, String> {
        if !self.is_on() {
            return Ok(None);
        }
        let port = self.port;
        let file = |named: (&'static str, &Option<PathBuf>), why: &str| match named.1 {
            Some(path) => Ok(PemFile { flag: named.0, path: path.clone() }),
            None => Err(format!("--{port}-{why} requires {}", named.0)),
        };
        let is_mutual = self.mutual == Some(true);
        let why = if self.use_ssl { "use-ssl" } else { "use-ssl-mutual" };
        Ok(Some(TlsFiles {
            certificate: file(self.certificate, why)?,
            key: file(self.key, why)?,
            client_roots: match is_mutual {
                true => Some(file(self.roots, "use-ssl-mutual")?),
                false => None,
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tls: TlsArguments,
    }

    fn parse(arguments: &str) -> TlsArguments {
        Line::parse_from(std::iter::once("x").chain(arguments.split_whitespace())).tls
    }

    const FILES: &str = "--grpc-server-cert=c --grpc-server-key=k --grpc-root-cert=r";

    #[test]
    fn any_use_of_the_mutual_flag_encrypts() {
        for (flags, is_on, is_mutual) in [
            ("", false, false),
            ("--grpc-use-ssl=false", false, false),
            ("--grpc-use-ssl=true", true, false),
            ("--grpc-use-ssl-mutual=true", true, true),
            ("--grpc-use-ssl-mutual=false", true, false),
        ] {
            let files = parse(&format!("{flags} {FILES}")).grpc().unwrap();
            assert_eq!(files.is_some(), is_on, "{flags}");
            assert_eq!(files.is_some_and(|it| it.client_roots.is_some()), is_mutual, "{flags}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (flags, expected) in [
            ("--grpc-use-ssl=true", "--grpc-use-ssl requires --grpc-server-cert"),
            ("--http-use-ssl=1 --http-server-cert=c", "--http-use-ssl requires --http-server-key"),
            (
                "--http-use-ssl-mutual=1 --http-server-cert=c --http-server-key=k",
                "--http-use-ssl-mutual requires --http-root-cert",
            ),
            ("--metrics-use-ssl=on", "--metrics-use-ssl requires --metrics-server-cert"),
        ] {
            let tls = parse(flags);
            let found = tls.grpc().and(tls.http()).and(tls.metrics()).unwrap_err();
            assert_eq!(found, expected, "{flags}");
        }
    }

    #[test]
    fn metrics_take_the_certificate_of_http_unless_they_have_their_own() {
        let of = |flags: &str| {
            let http = "--metrics-use-ssl=1 --http-server-cert=c --http-server-key=k";
            let files = parse(&format!("{http} {flags}")).metrics();
            files.map(|it| it.unwrap().certificate.flag)
        };
        assert_eq!(of(""), Ok("--http-server-cert"));
        let own = "--metrics-server-cert=mc --metrics-server-key=mk";
        assert_eq!(of(own), Ok("--metrics-server-cert"));
        // Never a certificate of one port with the key of the other.
        assert!(of("--metrics-server-cert=mc").is_err());
    }

    #[test]
    fn files_of_a_plain_port_have_no_effect() {
        assert_eq!(parse(FILES).without_effect().len(), 3);
        assert_eq!(parse(&format!("--grpc-use-ssl=1 {FILES}")).without_effect().len(), 0);
        let http = "--http-server-cert=c --http-server-key=k --http-root-cert=r";
        let metrics = "--metrics-server-cert=mc --metrics-server-key=mk";
        for (more, expected) in [
            ("", vec!["--http-server-cert", "--http-server-key", "--http-root-cert"]),
            ("--http-use-ssl=1", vec![]),
            ("--http-use-ssl-mutual=1", vec![]),
            ("--metrics-use-ssl=1", vec![]),
            ("--http-use-ssl=1 --metrics-use-ssl=1", vec![]),
        ] {
            assert_eq!(parse(&format!("{http} {more}")).without_effect(), expected, "{more}");
        }
        let both = parse(&format!("{http} {metrics} --http-use-ssl=1")).without_effect();
        assert_eq!(both, ["--metrics-server-cert", "--metrics-server-key"]);
    }
}
