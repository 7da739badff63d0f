//! What a model writes into the record of a request that somebody watches.

use std::sync::Arc;

use super::Model;
use crate::{
    config::Input,
    request::{Reply, Request},
    tensor::Tensor,
    trace::{Span, SpanStart},
};

impl Model {
    /// Notes that the request has come; what the model asks or executes is traced under that.
    pub(super) fn note(&self, span: &Span, request: &mut Request, reply: Reply) -> Reply {
        let begin = SpanStart {
            model: self.name().clone(),
            version: self.version,
            is_ensemble: !self.steps.is_empty(),
            request_id: request.context.id.clone(),
            at: reply.since(),
        };
        let Some(open_span) = span.begin(begin) else { return reply };
        let open_span = if span.record().has_tensors {
            let outputs = self.config.outputs.iter().map(|it| it.name.to_string()).collect();
            open_span.with_tensors(named(&self.config.inputs, &request.inputs), outputs)
        } else {
            open_span
        };
        request.context = Arc::new(request.context.under(open_span.span().clone()));
        reply.traced(open_span)
    }
}

fn named(configs: &[Input], tensors: &[Option<Tensor>]) -> Vec<(String, Tensor)> {
    let both = configs.iter().zip(tensors);
    both.filter_map(|(config, it)| Some((config.name.to_string(), it.clone()?))).collect()
}
