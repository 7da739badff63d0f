//! Which sequence a tensor belongs to: a step may say so in its response parameters.

use std::sync::Arc;

use troupe_base::{
    error::{Error, Result},
    request::{Context, Correlation, Parameter, Parameters},
};

const ID: &str = "sequence_id";
const START: &str = "sequence_start";
const END: &str = "sequence_end";

/// The context for whoever reads what this step wrote; `None` if it says nothing of a sequence.
pub(crate) fn context_after(
    context: &Context,
    parameters: &Parameters,
) -> Result<Option<Arc<Context>>> {
    let mut correlation = None;
    let mut flags = context.flags;
    let mut is_named = false;
    for (name, value) in parameters {
        match &**name {
            ID => correlation = Some(id(value)?),
            START => flags = with(flags, 1, flag(START, value)?),
            END => flags = with(flags, 2, flag(END, value)?),
            _ => continue,
        }
        is_named = true;
    }
    let correlation = correlation.unwrap_or_else(|| context.correlation.clone());
    Ok(is_named.then(|| Arc::new(context.in_sequence(correlation, flags))))
}

/// The parameters that every answer of an ensemble has, as Triton's do.
pub(super) fn parameters(context: &Context) -> Parameters {
    let id = match &context.correlation {
        Correlation::None => Parameter::Int(0),
        Correlation::Number(id) => Parameter::Int(*id as i64),
        Correlation::Text(id) => Parameter::String(id.clone()),
    };
    vec![
        (ID.into(), id),
        (START.into(), Parameter::Bool(context.flags & 1 != 0)),
        (END.into(), Parameter::Bool(context.flags & 2 != 0)),
    ]
}

fn id(value: &Parameter) -> Result<Correlation> {
    match value {
        Parameter::Int(id) => Ok(Correlation::of_number(*id as u64)),
        Parameter::Uint(id) => Ok(Correlation::of_number(*id)),
        Parameter::String(id) => Correlation::of_text(id.clone()),
        _ => Err(Error::invalid(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
             TRITONSERVER_PARAMETER_STRING",
        )),
    }
}

fn flag(name: &str, value: &Parameter) -> Result<bool> {
    match value {
        Parameter::Bool(is_set) => Ok(*is_set),
        _ => Err(Error::invalid(format!(
            "expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL"
        ))),
    }
}

fn with(flags: u32, bit: u32, is_set: bool) -> u32 {
    if is_set { flags | bit } else { flags & !bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parameters: &[(&str, Parameter)], expected: &str) {
        let parameters: Parameters =
            parameters.iter().map(|(it, value)| ((*it).to_owned().into(), value.clone())).collect();
        let context = Context { flags: 1, ..Context::default() };
        let answer = match context_after(&context, &parameters) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(context)) => format!("{:?} {}", context.correlation, context.flags),
            Err(error) => error.to_string(),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn a_step_may_begin_or_end_a_sequence() {
        check(&[("other", Parameter::Int(1))], "nothing");
        check(&[("sequence_id", Parameter::Int(7))], "Number(7) 1");
        check(&[("sequence_id", Parameter::String("a".into()))], "Text(\"a\") 1");
        check(&[("sequence_end", Parameter::Bool(true))], "None 3");
        check(&[("sequence_id", Parameter::Int(0))], "None 1");
        check(&[("sequence_id", Parameter::String(String::new()))], "None 1");
        check(&[("sequence_start", Parameter::Bool(false))], "None 0");
    }

    #[test]
    fn what_is_no_id_of_a_sequence_is_an_error() {
        check(
            &[("sequence_id", Parameter::String("é".repeat(129)))],
            "string correlation ID cannot be longer than 128 characters",
        );
        check(
            &[("sequence_id", Parameter::Bool(true))],
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
             TRITONSERVER_PARAMETER_STRING",
        );
        check(
            &[("sequence_end", Parameter::Int(1))],
            "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL",
        );
    }
}
