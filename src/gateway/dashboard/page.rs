//! The frame that all pages have.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;

use super::assets::SCRIPT;
use troupe_base::text::escape_markup;
use troupe_draw::PageUpdates;

/// A page before it is put together.
pub(super) struct Page {
    pub(super) title: String,
    /// The name of the server.
    pub(super) server: String,
    /// Where the changes of its numbers are; empty if it has none.
    pub(super) changes: String,
    /// See `PageUpdate`.
    pub(super) structure: String,
    /// Everything below the head, as markup.
    pub(super) body: String,
}

/// What a page that is open asks for each second.
#[derive(Serialize)]
pub(super) struct PageUpdate {
    /// Another value than the page's: it has to be read anew.
    pub(super) structure: String,
    pub(super) changes: PageUpdates,
    /// Why there is nothing to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
                    %3Cpath d='M4 4 12 8 4 12' fill='none' stroke='%232563eb' stroke-width='1.5'/%3E\
                    %3Cg fill='%232563eb'%3E%3Ccircle cx='4' cy='4' r='2.5'/%3E\
                    %3Ccircle cx='12' cy='8' r='2.5'/%3E%3Ccircle cx='4' cy='12' r='2.5'/%3E%3C/g%3E%3C/svg%3E";

impl Page {
    /// `token` tells the server that it is this page which asks.
    pub(super) fn html(&self, token: &str) -> String {
        let [title, server, changes] =
            [&self.title, &self.server, &self.changes].map(|it| escape_markup(it));
        let Page { structure, body, .. } = self;
        let stamp = self::structure(SCRIPT);
        let (live, refresh) = match changes.is_empty() {
            true => ("", ""),
            false => (
                "<p id=\"status\" class=\"status\" role=\"status\">as of when it was read</p>",
                "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
            ),
        };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"troupe-page-token\" content=\"{token}\">\n<title>{title}</title>\n\
             <link rel=\"icon\" href=\"{ICON}\">\n\
             <link rel=\"stylesheet\" href=\"/dashboard.css\">\n\
             <script src=\"/dashboard.js?{stamp}\" defer></script>\n{refresh}\n</head>\n\
             <body data-changes=\"{changes}\" data-structure=\"{structure}\">\n\
             <header class=\"top\"><a class=\"brand\" href=\"/\">troupe</a>\
             <span class=\"server\">{server}</span>{live}\
             <nav aria-label=\"more\"><a href=\"/docs\">API</a> <a href=\"/metrics\">metrics</a></nav></header>\n\
             <main>\n{body}</main>\n</body>\n</html>\n"
        )
    }
}

/// A short text that differs when `of` does.
pub(super) fn structure(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
