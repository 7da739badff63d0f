//! The first page: every ensemble at a glance, then every model with its state.

use std::{fmt::Write, sync::Arc, time::Instant};

use super::{
    blocks,
    page::{self, Page, PageUpdate},
};
use crate::ServerState;
use troupe_base::model::Model;
use troupe_base::text::{encode_path_segment, escape_markup};
use troupe_draw::{
    EmbeddedPicture, LiveGraph, PageUpdates, StepView, numbers, status, step::WorkNumbers,
};
use troupe_repository::{UNLOADED, VersionState};

/// Of fewer models the eye finds one without help.
const MIN_ROWS_TO_FILTER: usize = 13;
/// What is broken is told once more at the top, for so many.
const MAX_TROUBLES: usize = 5;
const FILTER: &str = "<label class=\"filter\">Filter <input id=\"filter\" type=\"search\" \
                      placeholder=\"part of a name\" autocomplete=\"off\"> \
                      <span id=\"filtered\" role=\"status\"></span></label>";
const NO_MODELS: &str = "<section class=\"panel hint\"><p class=\"said\">There are no models yet. \
                         <code>troupe new model hello</code> in the folder that this server was \
                         started in writes one; with <code>--watch</code> it is loaded at once.</p>\
                         </section>\n";

/// A version of a model, or a model without one.
struct ModelRow {
    name: Arc<str>,
    version: Option<i64>,
    state: VersionState,
    reason: String,
    model: Option<Arc<Model>>,
}

pub(super) fn page(state: &ServerState) -> Page {
    let rows = rows(state);
    let now = Instant::now();
    let mut body = String::new();
    let ready = rows.iter().filter(|it| it.model.is_some()).count();
    let ensembles: Vec<_> = ensembles(&rows).collect();
    let _ = writeln!(
        body,
        "<div class=\"heading\"><h1>Models</h1><p>{ready} of {} ready</p>{}</div>",
        rows.len(),
        if MIN_ROWS_TO_FILTER <= rows.len() { FILTER } else { "" }
    );
    body += &troubles(&rows);
    if rows.is_empty() {
        body += NO_MODELS;
    }
    if !ensembles.is_empty() {
        body += "<section class=\"ensembles\" aria-label=\"ensembles\">\n";
        for (index, model) in ensembles {
            body += &ensemble(index, model, now);
        }
        body += "</section>\n";
    }
    body += "<section class=\"panel scroll\" aria-label=\"all models\"><table class=\"models\"><thead><tr>";
    for column in [
        "Model",
        "Version",
        "State",
        "Requests",
        "Rate",
        "p50",
        "p99",
        "Queue",
        "In flight",
        "Errors",
        "Last minute",
    ] {
        let _ = write!(body, "<th scope=\"col\">{column}</th>");
    }
    body += "</tr></thead>\n<tbody>\n";
    for (index, row) in rows.iter().enumerate() {
        body += &line(index, row, now);
    }
    body += "</tbody></table></section>\n";
    Page {
        title: format!("{} · troupe", state.settings.server_id),
        server: state.settings.server_id.clone(),
        changes: "/changes".to_owned(),
        structure: structure(&rows),
        body,
    }
}

pub(super) fn update(state: &ServerState) -> PageUpdate {
    let rows = rows(state);
    let now = Instant::now();
    let mut changes = PageUpdates::default();
    for (index, model) in ensembles(&rows) {
        let graph = LiveGraph::of(model, now);
        part(&graph, model).updates(&format!("e{index}"), &mut changes);
    }
    for (index, row) in rows.iter().enumerate() {
        let Some(model) = &row.model else { continue };
        let numbers = WorkNumbers::of_model(model, now);
        changes.attribute(format!("r{index}-errors"), "class", errors_class(&numbers));
        for (key, value) in values(&numbers) {
            changes.text(format!("r{index}-{key}"), value);
        }
        changes.html(format!("r{index}-bars"), blocks::bars(&model.stats.recent.history(now)));
    }
    PageUpdate { structure: structure(&rows), changes, error: None }
}

fn rows(state: &ServerState) -> Vec<ModelRow> {
    let catalog = state.repository.catalog.load();
    let rows = catalog.entries.iter().flat_map(|(name, entry)| {
        let versions = entry.versions.iter().rev().map(|(number, it)| ModelRow {
            name: name.clone(),
            version: Some(*number),
            state: it.state,
            reason: it.reason.clone(),
            model: it.model.clone(),
        });
        let state =
            if entry.reason.is_empty() { VersionState::Unknown } else { VersionState::Unavailable };
        let none = entry.versions.is_empty().then(|| ModelRow {
            name: name.clone(),
            version: None,
            state,
            reason: entry.reason.clone(),
            model: None,
        });
        versions.chain(none).collect::<Vec<_>>()
    });
    rows.collect()
}

fn ensembles(rows: &[ModelRow]) -> impl Iterator<Item = (usize, &Arc<Model>)> {
    let ready = rows.iter().enumerate().filter_map(|(index, it)| Some((index, it.model.as_ref()?)));
    ready.filter(|(_, it)| it.config.is_ensemble())
}

fn structure(rows: &[ModelRow]) -> String {
    let row = |it: &ModelRow| {
        let steps = it.model.iter().flat_map(|it| &it.steps);
        let steps: Vec<_> = steps.map(|it| (it.name().clone(), it.version)).collect();
        let ready = it.model.as_ref().map(|it| (Arc::as_ptr(it).addr(), it.is_ready()));
        (it.name.clone(), it.version, it.state.as_str(), it.reason.clone(), ready, steps)
    };
    page::structure(rows.iter().map(row).collect::<Vec<_>>())
}

/// Where a model's own page is.
pub(super) fn address(model: &Model) -> String {
    let kind = if model.config.is_ensemble() { "ensemble" } else { "model" };
    format!("/{kind}/{}?version={}", encode_path_segment(model.name()), model.version)
}

fn part(graph: &LiveGraph, model: &Model) -> EmbeddedPicture {
    EmbeddedPicture::of(graph, &model.config, &|step: &StepView| {
        format!("/ensemble/{}", encode_path_segment(&step.model))
    })
}

fn ensemble(index: usize, model: &Arc<Model>, now: Instant) -> String {
    let graph = LiveGraph::of(model, now);
    let (name, address) = (escape_markup(model.name()), address(model));
    let picture = part(&graph, model).overview(&format!("e{index}"));
    format!(
        "<article class=\"panel\" data-model=\"{name}\"><h2><a href=\"{address}\">{name}</a> \
         <small>version {}</small> <a class=\"to-try\" href=\"{address}#try\" \
         aria-label=\"Try {name}\">Try it</a></h2>\n<div class=\"scroll\">{picture}</div></article>\n",
        model.version
    )
}

/// What is broken, before everything else: models that did not load, or not again.
fn troubles(rows: &[ModelRow]) -> String {
    let is_broken = |it: &&ModelRow| !it.reason.is_empty() && it.reason != UNLOADED;
    let broken: Vec<_> = rows.iter().filter(is_broken).collect();
    if broken.is_empty() {
        return String::new();
    }
    let mut out = "<section class=\"panel notice\" aria-label=\"what failed\"><ul>".to_owned();
    for it in broken.iter().take(MAX_TROUBLES) {
        let (name, address) = (escape_markup(&it.name), encode_path_segment(&it.name));
        let what = if it.model.is_some() { "was not reloaded" } else { "is not served" };
        let reason = escape_markup(it.reason.lines().next().unwrap_or_default());
        let _ = write!(
            out,
            "<li><a href=\"/model/{address}\">{name}</a> {what}: <span>{reason}</span></li>"
        );
    }
    if MAX_TROUBLES < broken.len() {
        let _ = write!(out, "<li>{} more, see below</li>", broken.len() - MAX_TROUBLES);
    }
    out + "</ul></section>\n"
}

/// Requests failed in the last minute, or not.
fn errors_class(of: &WorkNumbers) -> &'static str {
    if of.recent_errors == 0 { "number errors" } else { "number errors failing" }
}

fn values(of: &WorkNumbers) -> Vec<(&'static str, String)> {
    let cells = status::figures(of);
    let value = |key: &str| {
        cells.iter().find(|it| it.key == key).map(|it| it.value.clone()).unwrap_or_default()
    };
    let mut values = vec![("requests", numbers::count(of.requests))];
    values.extend(["rate", "p50", "p99", "queue", "flight", "errors"].map(|it| (it, value(it))));
    values
}

fn line(index: usize, row: &ModelRow, now: Instant) -> String {
    let name = escape_markup(&row.name);
    let version = row.version.map_or_else(|| numbers::NONE.to_owned(), |it| it.to_string());
    let (title, kind) = match &row.model {
        Some(model) => {
            let backend = match model.config.is_ensemble() {
                true => "ensemble",
                false => &*model.config.backend,
            };
            let address = address(model);
            (format!("<a href=\"{address}\">{name}</a>"), escape_markup(backend))
        }
        None => {
            let address = encode_path_segment(&row.name);
            (format!("<a href=\"/model/{address}\">{name}</a>"), String::new())
        }
    };
    let is_down = row.model.as_ref().is_some_and(|it| !it.is_ready());
    let (class, state) = match row.state {
        VersionState::Ready if is_down => ("down", "READY, no instance is up"),
        VersionState::Ready => ("ready", VersionState::Ready.as_str()),
        VersionState::Unavailable if row.reason == UNLOADED => ("unloaded", row.state.as_str()),
        VersionState::Unavailable => ("down", row.state.as_str()),
        VersionState::Unknown => ("unloaded", "not loaded"),
        other => ("changing", other.as_str()),
    };
    let id = escape_markup(&row.name);
    let width = if row.model.is_some() { 1 } else { 9 };
    let mut out = format!(
        "<tr data-model=\"{id}\"><th scope=\"row\" data-is=\"Model\">{title} <small>{kind}</small></th>\
         <td data-is=\"Version\">{version}</td>\
         <td data-is=\"State\" colspan=\"{width}\"><span class=\"state {class}\">{state}</span>"
    );
    if !row.reason.is_empty() {
        let _ = write!(out, "<p class=\"reason\">{}</p>", blocks::escaped_lines(&row.reason));
    }
    out += "</td>";
    let labels = ["Requests", "Rate", "p50", "p99", "Queue", "In flight", "Errors"];
    if let Some(model) = &row.model {
        let numbers = WorkNumbers::of_model(model, now);
        let values = values(&numbers);
        for ((key, value), label) in values.iter().zip(labels) {
            let class = match *key {
                "errors" => errors_class(&numbers).to_owned(),
                key => format!("number {key}"),
            };
            let _ = write!(
                out,
                "<td data-is=\"{label}\" class=\"{class}\" id=\"r{index}-{key}\">{value}</td>"
            );
        }
        let bars = blocks::bars(&model.stats.recent.history(now));
        let _ = write!(out, "<td class=\"minute\" id=\"r{index}-bars\">{bars}</td>");
    }
    out + "</tr>\n"
}
