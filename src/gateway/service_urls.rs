//! Addresses of this server's ports as links name them: the HTTP API, and the page beside the metrics.

use std::{net::SocketAddr, sync::OnceLock};

use actix_web::{HttpRequest, http::header};

use crate::socket::ListenAddress;

/// Where the services are, once they listen.
#[derive(Debug, Default)]
pub struct ServiceUrls {
    /// The HTTP API.
    pub http: OnceLock<ServiceUrl>,
    /// The metrics, and the page if there is one.
    pub metrics: OnceLock<ServiceUrl>,
}

impl ServiceUrls {
    /// The HTTP API, for somebody to whom this machine is `host`; what clients of a Unix socket
    /// write, which name it beside.
    pub(crate) fn api(&self, host: &str) -> String {
        let url = self.http.get().and_then(|it| it.text(host));
        url.unwrap_or_else(|| "http://localhost".to_owned())
    }
}

/// Where one service is.
#[derive(Clone, Debug)]
pub struct ServiceUrl {
    /// What it is bound to.
    pub address: ListenAddress,
    /// It speaks TLS.
    pub is_encrypted: bool,
}

impl ServiceUrl {
    /// The one host that it is reached by; `None` if that depends on who asks.
    pub fn own_host(&self) -> Option<String> {
        let address = self.address.tcp()?;
        let own = host_in_link(address, "");
        (!own.is_empty()).then_some(own)
    }

    /// For somebody to whom this machine is `host`; `None` of a Unix socket.
    pub fn text(&self, host: &str) -> Option<String> {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        let address = self.address.tcp()?;
        Some(format!("{scheme}://{}:{}", host_in_link(address, host), address.port()))
    }
}

/// What its client calls this machine.
pub(crate) fn host_of(http: &HttpRequest) -> &str {
    host_name(http.headers().get(header::HOST).and_then(|it| it.to_str().ok()))
}

/// The name in a `Host` header; `localhost` where it has none that could be in a link.
fn host_name(header: Option<&str>) -> &str {
    let header = header.unwrap_or_default();
    let host = match header.find(']') {
        Some(end) if header.starts_with('[') => &header[..=end],
        _ => header.split(':').next().unwrap_or_default(),
    };
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b".-_[]:".contains(&it);
    if host.is_empty() || !host.bytes().all(is_plain) { "localhost" } else { host }
}

/// A port on all addresses has those of the machine; one on loopback is reached by whatever name
/// leads there.
fn host_in_link(address: SocketAddr, host: &str) -> String {
    match address.ip() {
        ip if ip.is_unspecified() || ip.is_loopback() => host.to_owned(),
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_where_its_reader_came_from() {
        for (address, is_encrypted, header, expected) in [
            ("0.0.0.0:8002", false, Some("box:8000"), "http://box:8002"),
            ("0.0.0.0:8002", true, Some("box"), "https://box:8002"),
            ("[::]:8002", false, Some("[::1]:8000"), "http://[::1]:8002"),
            ("127.0.0.1:1", false, Some("localhost:8000"), "http://localhost:1"),
            ("10.0.0.7:8002", false, Some("box:8000"), "http://10.0.0.7:8002"),
            ("[fd00::7]:8002", false, Some("box:8000"), "http://[fd00::7]:8002"),
            ("0.0.0.0:8002", false, None, "http://localhost:8002"),
            ("0.0.0.0:8002", false, Some("a\"><script>"), "http://localhost:8002"),
        ] {
            let address = ListenAddress::Tcp(address.parse().unwrap());
            let url = ServiceUrl { address, is_encrypted };
            assert_eq!(url.text(host_name(header)).as_deref(), Some(expected), "{header:?}");
        }
        let unix = ListenAddress::Unix("/run/x".into());
        assert_eq!(ServiceUrl { address: unix, is_encrypted: false }.text("a"), None);
    }
}
