//! The trace extension: settings in Triton's names, as strings, over either protocol.

use crate::ServerState;
use troupe_base::{
    config::instead,
    error::{Error, Result},
};
use troupe_observability::telemetry::{FieldChange, TraceUpdate};
use troupe_options::TraceLevels;

/// Settings by name; a list of none clears one.
pub(super) type SettingValues = Vec<(String, Vec<String>)>;

/// Changes what is to be changed, and says what is set then. An empty name means the server.
pub(super) fn set(
    state: &ServerState,
    model: &str,
    changes: SettingValues,
) -> Result<Vec<(&'static str, Vec<String>)>> {
    let model = (!model.is_empty()).then_some(model);
    if let Some(name) = model
        && !state.model(name, None).is_ok_and(|it| it.is_ready())
    {
        return Err(Error::invalid(format!("Request for unknown model : {name}")));
    }
    if !changes.is_empty() {
        state.tracer.update(model, &update(changes)?)?;
    }
    Ok(state.tracer.shown(model))
}

/// What may be changed; `trace_mode` and `trace_file` are set at start.
const NAMES: [&str; 4] = ["trace_level", "trace_rate", "trace_count", "log_frequency"];

fn update(changes: SettingValues) -> Result<TraceUpdate> {
    if changes.iter().any(|(name, _)| name == "trace_file") {
        return Err(Error::unsupported(
            "trace file location can not be updated through network protocol",
        ));
    }
    let mut update = TraceUpdate::default();
    for (name, values) in changes {
        match name.as_str() {
            "trace_level" => update.levels = levels(&values)?,
            "trace_rate" => update.rate = number(&name, &values, 0..=u32::MAX.into())?,
            "trace_count" => update.count = number(&name, &values, -1..=i32::MAX.into())?,
            "log_frequency" => {
                update.log_frequency = number(&name, &values, 0..=u32::MAX.into())?;
            }
            "trace_mode" => {
                return Err(Error::unsupported(
                    "trace mode can not be updated through network protocol",
                ));
            }
            _ => {
                let text = format!("there is no setting '{name}'");
                return Err(invalid(&instead(text, &name, "settings", NAMES.into_iter())));
            }
        }
    }
    Ok(update)
}

fn levels(names: &[String]) -> Result<FieldChange<TraceLevels>> {
    if names.is_empty() {
        return Ok(FieldChange::Clear);
    }
    let levels = TraceLevels::parse(names.iter().map(String::as_str));
    let wrong = |text: String| {
        if text.starts_with("Expect") { Error::invalid(text) } else { invalid(&text) }
    };
    levels.map(FieldChange::Set).map_err(wrong)
}

fn number<T: TryFrom<i64>>(
    name: &str,
    values: &[String],
    range: std::ops::RangeInclusive<i64>,
) -> Result<FieldChange<T>> {
    let text = match values {
        [] => return Ok(FieldChange::Clear),
        [text] => text,
        _ => return Err(Error::invalid(format!("expect only 1 value for '{name}'"))),
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|it| it.is_ascii_digit()) {
        return Err(Error::invalid(format!("Unable to parse '{name}', got: {text}")));
    }
    let number = text.parse::<i64>().ok();
    if *range.start() == -1 && number.is_some_and(|it| (i32::MIN.into()..-1).contains(&it)) {
        return Err(Error::invalid(format!(
            "Unable to parse '{name}'. Expecting value >= -1, got:{text}"
        )));
    }
    let inside = number.filter(|it| range.contains(it)).and_then(|it| T::try_from(it).ok());
    inside.map(FieldChange::Set).ok_or_else(|| {
        let (least, most) = range.into_inner();
        Error::invalid(format!(
            "Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}"
        ))
    })
}

fn invalid(why: &str) -> Error {
    Error::invalid(format!("Attempting to set invalid trace setting :{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::error::ErrorKind;

    fn update_of(name: &str, values: &[&str]) -> Result<TraceUpdate> {
        update(vec![(name.to_owned(), values.iter().map(|it| (*it).to_owned()).collect())])
    }

    #[test]
    fn fields_are_set_or_cleared() {
        let rate = update_of("trace_rate", &["7"]).unwrap();
        assert_eq!(rate, TraceUpdate { rate: FieldChange::Set(7), ..TraceUpdate::default() });
        let count = update_of("trace_count", &["-1"]).unwrap();
        assert_eq!(count.count, FieldChange::Set(-1));
        assert_eq!(update_of("trace_count", &[]).unwrap().count, FieldChange::Clear);
        let both = update_of("trace_level", &["TENSORS", "TIMESTAMPS"]).unwrap().levels;
        assert_eq!(both, FieldChange::Set(TraceLevels { timestamps: true, tensors: true }));
        assert_eq!(
            update_of("log_frequency", &["4294967295"]).unwrap().log_frequency,
            FieldChange::Set(u32::MAX)
        );
    }

    #[test]
    fn texts_are_those_of_triton() {
        for (name, values, expected) in [
            (
                "trace_level",
                &["OFF", "TENSORS"][..],
                "Expect only one trace level 'OFF' is specified",
            ),
            ("trace_rate", &["x"], "Unable to parse 'trace_rate', got: x"),
            ("trace_rate", &["1", "2"], "expect only 1 value for 'trace_rate'"),
            (
                "trace_rate",
                &["4294967296"],
                "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
            ),
            (
                "trace_count",
                &["-2"],
                "Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
            ),
            (
                "trace_count",
                &["99999999999999999999"],
                "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999999999999",
            ),
            (
                "trace_rates",
                &["1"],
                "Attempting to set invalid trace setting :there is no setting 'trace_rates', did you mean \
                 `trace_rate`?",
            ),
        ] {
            let error = update_of(name, values).unwrap_err();
            assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::InvalidArg, expected));
        }
        let file = update_of("trace_file", &["x"]).unwrap_err();
        assert_eq!(file.kind(), ErrorKind::Unsupported);
        assert_eq!(
            file.to_string(),
            "trace file location can not be updated through network protocol"
        );
    }
}
