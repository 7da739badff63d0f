//! A model's own page: its graph with numbers, and everything known of the step that is chosen.

use std::{fmt::Write, sync::Arc, time::Instant};

use super::{
    blocks, index,
    page::{self, Page, PageUpdate},
    workbench,
};
use crate::ServerState;
use troupe_base::text::{encode_path_segment, escape_markup};
use troupe_base::{
    error::{Error, Result},
    model::Model,
};
use troupe_draw::{
    EmbeddedPicture, LiveGraph, PageUpdates, StepHealth, StepView, numbers,
    status::{self, Figure},
};
use troupe_repository::{VersionEntry, VersionState};

pub(super) fn page(state: &ServerState, name: &str, version: Option<i64>) -> Result<Page> {
    let model = state.model(name, version)?;
    let graph = LiveGraph::of(&model, Instant::now());
    let (name, kind) = (escape_markup(model.name()), kind(&model));
    let mut body = format!(
        "<p class=\"way\"><a href=\"/\">Models</a></p>\n<div class=\"heading\"><h1>{name}</h1>\
         <p>{kind}, version {}{}</p><a class=\"to-try\" href=\"#try\">Try it</a></div>\n\
         <dl class=\"strip panel\">{}</dl>\n{}<div class=\"columns\">\n",
        model.version,
        others(state, &model),
        blocks::figures("s", &whole(&graph)),
        notice(&refusal(state, &model)),
    );
    let part = part(&graph, &model);
    let (picture, slim) = (part.cards(""), part.narrow("m"));
    let _ = write!(
        body,
        "<section class=\"panel picture\" aria-label=\"graph\"><div class=\"scroll\">{picture}{slim}</div>\
         {}</section>\n<div class=\"details\" aria-label=\"steps\">\n",
        legend()
    );
    let slowest = slowest(&graph);
    for (node, step) in graph.steps() {
        body += &detail(&graph, node, step, Some(node) == slowest);
    }
    body += "</div>\n</div>\n";
    body += &workbench::form(state, &model);
    let _ = write!(
        body,
        "<section class=\"panel failures\" aria-labelledby=\"failures-title\">\
         <h2 id=\"failures-title\">Last failures</h2>\n<div id=\"failures\">{}</div></section>\n",
        blocks::failures(&model.stats.recent.failures(), Instant::now())
    );
    Ok(Page {
        title: format!("{} · {} · troupe", model.name(), state.settings.server_id),
        server: state.settings.server_id.clone(),
        changes: changes_address(model.name(), version),
        structure: structure(state, &graph, &model),
        body,
    })
}

/// Why the files that lie there now are not what serves, if the last reload of them failed.
fn refusal(state: &ServerState, model: &Model) -> String {
    let catalog = state.repository.catalog.load();
    let entry = catalog.entries.get(model.name());
    let version = entry.and_then(|it| it.versions.get(&model.version));
    version.map(|it| it.reason.clone()).unwrap_or_default()
}

fn notice(refusal: &str) -> String {
    if refusal.is_empty() {
        return String::new();
    }
    let reason = blocks::escaped_lines(refusal);
    format!("<section class=\"panel notice\"><p class=\"said reason\">{reason}</p></section>\n")
}

/// What there is to say of a model that has no graph.
///
/// `version` is what was asked for; `None` if it is no version at all.
pub(super) fn missing(
    state: &ServerState,
    name: &str,
    version: Option<Option<i64>>,
    error: &Error,
) -> Page {
    let mut body = format!(
        "<p class=\"way\"><a href=\"/\">Models</a></p>\n<div class=\"heading\"><h1>{}</h1></div>\n\
         <section class=\"panel\"><p class=\"said\">{}</p>",
        escape_markup(name),
        blocks::escaped_lines(&without_reason(state, name, error))
    );
    for told in states(state, name) {
        let _ = write!(body, "<p class=\"said reason\">{}</p>", blocks::escaped_lines(&told));
    }
    Page {
        title: format!("{name} · troupe"),
        server: state.settings.server_id.clone(),
        changes: version.map(|it| changes_address(name, it)).unwrap_or_default(),
        structure: structure_of_missing(state, name, error),
        body: body + "</section>\n",
    }
}

/// Why versions of a model do not serve, or that they are just being loaded.
fn states(state: &ServerState, name: &str) -> Vec<String> {
    let catalog = state.repository.catalog.load();
    let Some(entry) = catalog.entries.get(name) else { return Vec::new() };
    let told = |version: &VersionEntry| match version.state {
        VersionState::Loading | VersionState::Unloading => version.state.as_str().to_owned(),
        _ => version.reason.clone(),
    };
    let all = entry.versions.values().map(told).chain([entry.reason.clone()]);
    all.filter(|it| !it.is_empty()).collect()
}

/// The error without the reasons of failed loads, which stand below it, line by line.
fn without_reason(state: &ServerState, name: &str, error: &Error) -> String {
    let text = error.to_string();
    let reason = state.repository.catalog.load().entries.get(name).map(|it| it.why_not());
    text.strip_suffix(&reason.unwrap_or_default()).unwrap_or(&text).to_owned()
}

fn structure_of_missing(state: &ServerState, name: &str, error: &Error) -> String {
    page::structure((error.to_string(), states(state, name)))
}

/// What the page of a model that does not serve asks for each second.
pub(super) fn update_of_missing(state: &ServerState, name: &str, error: &Error) -> PageUpdate {
    PageUpdate {
        structure: structure_of_missing(state, name, error),
        changes: PageUpdates::default(),
        error: Some(without_reason(state, name, error)),
    }
}

pub(super) fn update(state: &ServerState, name: &str, version: Option<i64>) -> Result<PageUpdate> {
    let model = state.model(name, version)?;
    let graph = LiveGraph::of(&model, Instant::now());
    let mut changes = PageUpdates::default();
    let part = part(&graph, &model);
    ["", "m"].into_iter().for_each(|prefix| part.updates(prefix, &mut changes));
    for it in whole(&graph) {
        changes.text(format!("s-{}", it.key), it.value);
    }
    for (node, step) in graph.steps() {
        let id = format!("dn{node}");
        for it in cells(step) {
            changes.text(format!("{id}-{}", it.key), it.value);
        }
        changes.attribute(format!("{id}-state"), "class", state_class(step.health));
        changes.text(format!("{id}-state"), step.health.word());
        changes.text(format!("{id}-instances"), instances(step));
        for (block, markup) in blocks_of(&graph, step) {
            changes.html(format!("{id}-{block}"), markup);
        }
    }
    changes.html("failures", blocks::failures(&model.stats.recent.failures(), Instant::now()));
    Ok(PageUpdate { structure: structure(state, &graph, &model), changes, error: None })
}

fn kind(model: &Model) -> String {
    match model.config.is_ensemble() {
        true => "ensemble".to_owned(),
        false => format!("{} model", escape_markup(&model.config.backend)),
    }
}

fn changes_address(name: &str, version: Option<i64>) -> String {
    let version = version.map(|it| format!("?version={it}")).unwrap_or_default();
    format!("/model/{}/changes{version}", encode_path_segment(name))
}

/// Links to the other versions that are ready.
fn others(state: &ServerState, model: &Model) -> String {
    let versions = state.repository.catalog.load().versions(model.name());
    let others = versions.iter().filter(|it| it.version != model.version);
    let link = |it: &Arc<Model>| {
        format!(" · <a href=\"{}\">version {}</a>", index::address(it), it.version)
    };
    others.map(link).collect()
}

fn part(graph: &LiveGraph, model: &Model) -> EmbeddedPicture {
    EmbeddedPicture::of(graph, &model.config, &inside)
}

/// Where the graph of a step that is an ensemble is.
fn inside(step: &StepView) -> String {
    let kind = if step.ensemble { "ensemble" } else { "model" };
    format!("/{kind}/{}?version={}", encode_path_segment(&step.model), step.version)
}

fn structure(state: &ServerState, graph: &LiveGraph, model: &Arc<Model>) -> String {
    let steps = graph.steps().map(|(_, it)| (it.model.clone(), it.version.clone()));
    let steps: Vec<_> = steps.collect();
    let (refusal, others) = (refusal(state, model), others(state, model));
    page::structure((Arc::as_ptr(model).addr(), steps, refusal, others))
}

fn whole(graph: &LiveGraph) -> Vec<Figure> {
    let of = &graph.numbers;
    let mut cells: Vec<Figure> = status::figures(of).into();
    cells.retain(|it| matches!(it.key, "rate" | "p50" | "p99" | "flight"));
    cells.push(Figure {
        key: "total",
        label: "requests in all",
        value: numbers::count(of.requests),
    });
    cells.push(Figure { key: "errors", label: "errors", value: numbers::count(of.errors) });
    cells
}

fn cells(step: &StepView) -> Vec<Figure> {
    let mut cells: Vec<Figure> = status::figures(&step.numbers).into();
    cells.extend(blocks::totals(&step.numbers));
    cells
}

fn blocks_of(graph: &LiveGraph, step: &StepView) -> [(&'static str, String); 4] {
    [
        ("minute", blocks::minute(step)),
        ("error", blocks::last_error(&step.numbers, graph.ensemble)),
        ("batches", blocks::batches(&step.numbers)),
        ("tensors", blocks::tensors(graph, &step.id)),
    ]
}

fn state_class(health: StepHealth) -> String {
    format!("state {}", health.class())
}

fn instances(step: &StepView) -> String {
    match (step.instances, step.instances_ready) {
        _ if step.ensemble => "ensemble".to_owned(),
        (1, 1) => "1 instance".to_owned(),
        (all, ready) if all == ready => format!("{all} instances"),
        (all, ready) => format!("{ready} of {all} instances are up"),
    }
}

/// The node that most time is spent at.
fn slowest(graph: &LiveGraph) -> Option<usize> {
    let p50 = |step: &StepView| step.numbers.p50_us.unwrap_or(0.0);
    let steps = graph.steps().map(|(node, step)| (node, p50(step)));
    // Of equals the first: the page is the same however often it is read.
    steps.reduce(|best, it| if best.1 < it.1 { it } else { best }).map(|it| it.0)
}

fn detail(graph: &LiveGraph, node: usize, step: &StepView, is_first: bool) -> String {
    let id = format!("dn{node}");
    let name = escape_markup(&step.model);
    let first = if is_first { " first" } else { "" };
    let own = match (graph.ensemble, step.ensemble) {
        (true, true) => "its own graph",
        (true, false) => "its own page",
        (false, _) => "",
    };
    let link = match own {
        "" => String::new(),
        own => format!(" · <a href=\"{}\">{own}</a>", escape_markup(&inside(step))),
    };
    let position = if graph.ensemble { format!("step {}, ", step.step) } else { String::new() };
    let mut out = format!(
        "<section class=\"panel detail{first}\" id=\"{id}\" aria-labelledby=\"{id}-name\" \
         tabindex=\"-1\">\n<button class=\"close\" type=\"button\" aria-label=\"close\">×</button>\
         <h2 id=\"{id}-name\">{name} <span id=\"{id}-state\" class=\"{}\">{}</span></h2>\n\
         <p class=\"about\">{position}version {} · <span id=\"{id}-instances\">{}</span>{link}</p>\n{}\
         <dl class=\"figures\">{}</dl>\n",
        state_class(step.health),
        step.health.word(),
        step.version,
        instances(step),
        scheduling(step),
        blocks::figures(&id, &cells(step)),
    );
    let titles = ["Last minute", "Last error", "Executed batch sizes", "Tensors"];
    for ((block, markup), title) in blocks_of(graph, step).iter().zip(titles) {
        let _ = write!(
            out,
            "<h3>{title}</h3>\n<div id=\"{id}-{block}\" class=\"{block}\">{markup}</div>\n"
        );
    }
    out + "</section>\n"
}

/// What the config of a step's model says of scheduling.
fn scheduling(step: &StepView) -> String {
    if step.scheduling.is_empty() {
        return String::new();
    }
    format!("<p class=\"about\">{}</p>\n", escape_markup(&step.scheduling.join(" · ")))
}

fn legend() -> String {
    let all = [
        StepHealth::Working,
        StepHealth::Idle,
        StepHealth::Saturated,
        StepHealth::Failing,
        StepHealth::Unavailable,
    ];
    let item = |it: &StepHealth| {
        format!(
            "<li class=\"{}\"><svg width=\"10\" height=\"10\" aria-hidden=\"true\">\
             <circle class=\"dot\" cx=\"5\" cy=\"5\" r=\"4.5\"/></svg>{}</li>",
            it.class(),
            it.word()
        )
    };
    let items: String = all.iter().map(item).collect();
    format!(
        "<div class=\"legend\"><ul>{items}</ul><p>Durations are those of the last minute, rates \
         those of the last ten seconds, counts those since the load. A step is failing when a request \
         failed in the last minute. The more bytes flow, the faster their line moves.</p></div>"
    )
}
