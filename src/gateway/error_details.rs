//! Where in an ensemble a request failed, as fields beside the text of its error.

use serde::Serialize;

use troupe_base::error::{Error, StepError};

/// The step that failed, the way to it, and whose request it was.
#[derive(Serialize)]
pub(super) struct StepDetails<'a> {
    #[serde(flatten)]
    failed: StepPlace<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    /// From the ensemble the client asked to the step that failed.
    path: Vec<StepPlace<'a>>,
}

/// A step of an ensemble.
#[derive(Clone, Serialize)]
struct StepPlace<'a> {
    ensemble: &'a str,
    step: usize,
    model: &'a str,
    /// As text, as everywhere in the protocol.
    version: String,
}

/// `None` for what did not happen in an ensemble.
pub(super) fn of(error: &Error) -> Option<StepDetails<'_>> {
    let path: Vec<StepPlace<'_>> = error.path().map(place).collect();
    let request_id = error.path().map(|at| &*at.request_id).find(|id| !id.is_empty());
    let instance = error.instance().map(|it| &**it);
    Some(StepDetails { failed: path.last()?.clone(), instance, request_id, path })
}

fn place(at: &StepError) -> StepPlace<'_> {
    let StepError { ensemble, step, model, version, .. } = at;
    StepPlace { ensemble, step: *step, model, version: version.to_string() }
}

impl StepDetails<'_> {
    /// The fields as names and texts, for protocols that have no more; the path reads
    /// `outer[0] inner[2]`.
    pub(super) fn texts(&self) -> Vec<(&'static str, String)> {
        let StepDetails { failed, instance, request_id, path } = self;
        let levels = path.iter().map(|it| format!("{}[{}]", it.ensemble, it.step));
        let path: Vec<String> = levels.collect();
        let always = [
            ("ensemble", failed.ensemble.to_owned()),
            ("step", failed.step.to_string()),
            ("model", failed.model.to_owned()),
            ("version", failed.version.clone()),
            ("path", path.join(" ")),
        ];
        let known = [("instance", instance), ("request_id", request_id)];
        let known =
            known.into_iter().filter_map(|(name, it)| Some((name, it.as_ref()?.to_string())));
        always.into_iter().chain(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn at(ensemble: &str, (step, model): (usize, &str), source: Error) -> Error {
        let (ensemble, model, request_id) = (ensemble.into(), model.into(), "7".into());
        Error::Step(Arc::new(StepError { ensemble, step, model, version: 2, request_id, source }))
    }

    #[test]
    fn fields_tell_the_innermost_step_and_the_way_to_it() {
        let error = at("inner", (2, "m"), Error::internal("x").at_instance(&"m_0".into()));
        let error = at("outer", (0, "inner"), error);
        let provenance = of(&error).unwrap();
        let (outer, inner) = (
            json!({"ensemble": "outer", "step": 0, "model": "inner", "version": "2"}),
            json!({"ensemble": "inner", "step": 2, "model": "m", "version": "2"}),
        );
        assert_eq!(
            serde_json::to_value(&provenance).unwrap(),
            json!({
                "ensemble": "inner", "step": 2, "model": "m", "version": "2",
                "instance": "m_0", "request_id": "7", "path": [outer, inner],
            })
        );
        let expected = [
            ("ensemble", "inner"),
            ("step", "2"),
            ("model", "m"),
            ("version", "2"),
            ("path", "outer[0] inner[2]"),
            ("instance", "m_0"),
            ("request_id", "7"),
        ];
        assert_eq!(provenance.texts(), expected.map(|(name, text)| (name, text.to_owned())));
        assert!(of(&Error::internal("x").at_instance(&"m_0".into())).is_none());
    }
}
