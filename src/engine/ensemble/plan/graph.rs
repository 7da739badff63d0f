//! Config to graph: steps are nodes, a tensor flowing from one step to another is an edge.

use std::collections::HashMap;

use petgraph::{algo::toposort, graph::DiGraph};

use troupe_base::config::EnsembleConfig;

/// Node weights are positions of steps in the config, edge weights the tensors' names.
pub(super) type Graph = DiGraph<usize, String>;

/// The graph, or the position of a step that waits for itself.
///
/// The config has been checked: every tensor has one producer, a step or the client.
pub fn build(config: &EnsembleConfig) -> Result<DiGraph<usize, String>, usize> {
    let mut graph = Graph::new();
    let nodes: Vec<_> = (0..config.steps.len()).map(|step| graph.add_node(step)).collect();
    let mut producers = HashMap::new();
    for (index, step) in config.steps.iter().enumerate() {
        for (_, tensor) in &step.outputs {
            producers.insert(tensor.as_str(), nodes[index]);
        }
    }
    for (index, step) in config.steps.iter().enumerate() {
        for (_, tensor) in &step.inputs {
            if let Some(producer) = producers.get(tensor.as_str()) {
                graph.add_edge(*producer, nodes[index], tensor.clone());
            }
        }
    }
    match toposort(&graph, None) {
        Ok(_) => Ok(graph),
        Err(cycle) => Err(graph[cycle.node_id()]),
    }
}
