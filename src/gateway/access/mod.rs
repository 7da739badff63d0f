//! Who may ask for what: restricted APIs, and requests that web pages of other origins send.

mod cors;
mod guard;
mod origin;
mod restrictions;

use std::sync::Arc;

use self::origin::is_own_host;
pub use self::{
    cors::AllowedOrigins,
    origin::{PAGE_TOKEN_HEADER, PageToken},
    restrictions::Restrictions,
};
pub(crate) use self::{
    cors::with_cors,
    guard::{add_guarded, add_page_only},
};
use troupe_base::error::{Error, Result};
use troupe_options::Api;

/// What a request does, as far as access is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its group among the restricted APIs.
    pub api: Api,
    /// A second group whose header it asks for: it shows what that group shows.
    pub also: Option<Api>,
    /// It changes what the server does, or shows what other clients sent: no web page of another
    /// origin may ask for it.
    pub changes: bool,
}

impl Endpoint {
    /// One that changes nothing.
    pub const fn reading(api: Api) -> Endpoint {
        Endpoint { api, also: None, changes: false }
    }

    /// One that changes something, or shows what others sent.
    pub const fn changing(api: Api) -> Endpoint {
        Endpoint { api, also: None, changes: true }
    }

    fn groups(self) -> impl Iterator<Item = Api> {
        [Some(self.api), self.also].into_iter().flatten()
    }
}

/// Why a request may not ask for what it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It lacks this header, or the header's value is wrong.
    Restricted(Arc<str>),
    /// It comes from a web page of another origin.
    ForeignPage,
    /// It is for our own page, and this is not from there.
    OnlyPage,
}

/// The text for a web page of another origin.
pub const FOREIGN_PAGE: &str = "requests of web pages must not change this server";

/// The text for everybody who is not our own page.
pub const ONLY_PAGE: &str = "this address answers the page of this server only: send requests to the HTTP port. If this is \
     that page, open it by an IP address, or start the server with --http-allow-origin and the \
     address that the browser shows";

/// The rules of one protocol.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Which endpoints ask for a header.
    pub restrictions: Restrictions,
    /// What our own page says.
    pub token: PageToken,
    /// Requests of loads may bring no files: they would be code that runs here.
    pub refuses_files: bool,
    /// Which web pages of other origins may read answers; none of gRPC.
    pub origins: AllowedOrigins,
}

impl Access {
    /// May a load bring so many files along?
    pub fn check_files(&self, count: usize) -> Result<()> {
        if count == 0 || !self.refuses_files {
            return Ok(());
        }
        Err(Error::invalid(
            "files in load requests ('file:' parameters) are refused: start the server with \
             --allow-load-overrides=true to take them",
        ))
    }

    /// Is there anything to look at?
    pub fn is_guarded(&self, endpoint: Endpoint) -> bool {
        endpoint.changes || endpoint.groups().any(|api| self.restrictions.of(api).is_some())
    }

    /// What our own page is to say; nothing where a browser asked for it by a name that may be
    /// anybody's. `host` is the header of that name.
    pub(crate) fn page_token(&self, host: &str) -> &str {
        let is_known = is_own_host(host) || self.origins.has_host(host);
        if is_known { self.token.text() } else { "" }
    }

    /// May our own page, and nobody else, ask for an inference with these headers?
    pub fn check_page<'a>(
        &self,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> std::result::Result<(), Denied> {
        for api in [Api::Troupe, Api::Inference] {
            self.restrictions.check(api, &header)?;
        }
        if self.token.is_said(header) { Ok(()) } else { Err(Denied::OnlyPage) }
    }

    /// May a request with these headers ask for it? `header` finds one by its name in lower case.
    pub fn check<'a>(
        &self,
        endpoint: Endpoint,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> std::result::Result<(), Denied> {
        for api in endpoint.groups() {
            self.restrictions.check(api, &header)?;
        }
        if endpoint.changes && self.token.is_foreign_page(header) {
            return Err(Denied::ForeignPage);
        }
        Ok(())
    }
}
