//! Requests that browsers send for web pages: refused where they change something, unless the page
//! is ours.
//!
//! A browser sends simple requests of any page to any address, so visiting a page must not be enough
//! to load a model. What tells such a request is a header that scripts cannot leave out. Our own page
//! says a token that was written into it. The owner of a name decides which address it stands for,
//! and may lead it here once a browser has opened a page under it (DNS rebinding): the token is
//! written into pages that were asked for by an address, or by a name that nobody can register.

use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
};

use subtle::ConstantTimeEq;

/// The header in which our page says its token. A page of another origin could not send it without
/// asking first, and is not allowed to.
pub const PAGE_TOKEN_HEADER: &str = "troupe-page-token";

/// What the server writes into its own pages; another one for each server.
#[derive(Clone)]
pub struct PageToken(String);

impl PageToken {
    /// For the page.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Does a browser send this for a page that is not ours?
    pub(super) fn is_foreign_page<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> bool {
        // Typed into the address bar, or no browser at all.
        let is_of_page = header("origin").is_some()
            || header("sec-fetch-site").is_some_and(|site| site != b"none");
        is_of_page && !self.is_said(header)
    }

    /// Does our own page say it?
    pub(super) fn is_said<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> bool {
        header(PAGE_TOKEN_HEADER).is_some_and(|it| bool::from(it.ct_eq(self.0.as_bytes())))
    }
}

/// Does a `Host` header name this machine in a way that no stranger can lead to it: by an address, as
/// `localhost`, or by a name without a dot, which no registry has?
pub(super) fn is_own_host(header: &str) -> bool {
    let bare = header.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(header);
    if header.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = header.split(':').next().unwrap_or_default().to_ascii_lowercase();
    !name.is_empty() && !name.contains('.') || name.ends_with(".localhost")
}

impl Default for PageToken {
    /// A new one. Without randomness of the system there is none that anybody could say.
    fn default() -> PageToken {
        let mut bytes = [0; 16];
        let mut text = String::new();
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(16) => {
                for byte in bytes {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{byte:02x}");
                }
            }
            // No header's value has a line break.
            _ => text.push('\n'),
        }
        PageToken(text)
    }
}

impl fmt::Debug for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_anybody_can_register_are_not_our_own() {
        let own = "127.0.0.1 127.0.0.1:8002 [::1] [::1]:8002 localhost localhost:8002 LOCALHOST \
                   troupe.localhost:8002 gpu-box gpu-box:8002 192.168.1.7:80";
        let others = "evil.example evil.example:8002 127.0.0.1.evil.example localhost.evil.example:8002 \
                      localhost. 127.0.0.1.:8002 evil.localhost.example [evil.example]";
        for host in own.split_whitespace() {
            assert!(is_own_host(host), "{host}");
        }
        for host in others.split_whitespace().chain(["", ":8002"]) {
            assert!(!is_own_host(host), "{host}");
        }
    }

    #[test]
    fn browsers_are_told_by_what_scripts_cannot_leave_out() {
        let token = PageToken::default();
        let ours = token.text();
        for (headers, expected) in [
            (vec![], false),
            (vec![("sec-fetch-site", "none")], false),
            (vec![("sec-fetch-site", "cross-site")], true),
            (vec![("sec-fetch-site", "same-site")], true),
            (vec![("sec-fetch-site", "same-origin")], true),
            (vec![("origin", "http://evil.example")], true),
            (vec![("origin", "null")], true),
            (vec![("origin", "http://localhost:8000"), ("host", "localhost:8000")], true),
            (vec![("origin", "http://a"), ("troupe-page-token", ours)], false),
            (vec![("origin", "http://a"), ("troupe-page-token", "")], true),
            (vec![("origin", "http://a"), ("troupe-page-token", &ours[1..])], true),
        ] {
            let header =
                |name: &str| headers.iter().find(|it| it.0 == name).map(|it| it.1.as_bytes());
            assert_eq!(token.is_foreign_page(header), expected, "{headers:?}");
        }
        assert_ne!(ours, PageToken::default().text());
        assert_eq!(ours.len(), 32);
    }
}
