//! Answers that browsers show: pages, styles and scripts, under a policy that lets in nothing else.

use actix_web::{
    HttpResponse, HttpResponseBuilder,
    http::{StatusCode, header},
};

use troupe_base::text::escape_markup;

/// Scripts and styles come from here, and what looks like one in a name is none.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What pages are.
pub(crate) const HTML: &str = "text/html; charset=utf-8";
/// What style sheets are.
pub(crate) const CSS: &str = "text/css; charset=utf-8";
/// What scripts are.
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";

/// An answer without its body.
pub(crate) fn response(code: StatusCode, media_type: &str) -> HttpResponseBuilder {
    let mut response = HttpResponse::build(code);
    response
        .content_type(media_type)
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header((header::CACHE_CONTROL, "no-store"));
    response
}

/// A page that needs neither style nor script; `body` is markup.
pub(crate) fn plain_page(title: &str, body: &str) -> String {
    let title = escape_markup(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n</head>\n\
         <body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}
