//! The picture of a model at work: what its config says, and the status of steps and tensors.

use super::{
    graph::{GraphNode, LiveGraph},
    picture::EnsemblePicture,
    status::{GraphLink, LiveStep, LiveTensor},
};
use troupe_base::config::ModelConfig;

/// The picture of `config` with what `graph` says of it; `link` says where a nested ensemble's own
/// graph is.
pub(super) fn live_picture(
    config: &ModelConfig,
    graph: &LiveGraph,
    link: GraphLink<'_>,
) -> EnsemblePicture {
    let mut picture = EnsemblePicture::of(config);
    for (node, now) in picture.nodes.iter_mut().zip(&graph.nodes) {
        if let GraphNode::Step(step) = now {
            node.note = format!("step {} · v{}", step.step, step.version);
            if !config.is_ensemble() {
                node.note = format!("v{}", step.version);
            }
            node.facts = step.scheduling.clone();
            let link = (config.is_ensemble() && step.ensemble).then(|| link(step));
            node.live = Some(LiveStep::of(step, link));
        }
    }
    for flow in &mut picture.flows {
        let edge = graph.edges.iter().find(|edge| edge.tensor == flow.tensor);
        flow.live =
            edge.map(|edge| LiveTensor::of(edge.datatype, &edge.shape, edge.bytes_per_second));
    }
    picture
}
