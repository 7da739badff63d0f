//! Whether the work of a model is bounded by the shapes of its inputs, or depends on what they say.

use std::{
    collections::HashSet,
    io::{self, BufRead, Error, ErrorKind, Seek},
    path::Path,
};

use super::file_graph::{self, Field, Wire};

/// A graph of more is taken for one that is not bounded.
const MAX_NODES: usize = 100_000;
/// Sets of operators that are known here.
const DOMAINS: &[&str] = &["", "ai.onnx", "ai.onnx.ml"];
/// They know of shapes only, not of what tensors say.
const OF_SHAPES: &[&str] = &["Shape", "Size"];

/// Operators whose work, or the shape of whose outputs, depends on what their inputs say: all inputs
/// from that position on.
const DEPENDING: &[(&str, usize)] = &[
    ("AffineGrid", 1),
    ("BlackmanWindow", 0),
    ("CenterCropPad", 1),
    ("Col2Im", 1),
    ("Compress", 0),
    ("ConstantOfShape", 0),
    ("DFT", 1),
    ("Expand", 1),
    ("GRU", 4),
    ("HammingWindow", 0),
    ("HannWindow", 0),
    ("ImageDecoder", 0),
    ("LSTM", 4),
    ("MaxRoiPool", 1),
    ("MaxUnpool", 2),
    ("MelWeightMatrix", 0),
    ("NonMaxSuppression", 0),
    ("NonZero", 0),
    ("OneHot", 1),
    ("Pad", 1),
    ("RNN", 4),
    ("Range", 0),
    ("Reshape", 1),
    ("Resize", 1),
    ("RoiAlign", 1),
    ("STFT", 1),
    ("Slice", 1),
    ("Split", 1),
    ("Squeeze", 1),
    ("StringNormalizer", 0),
    ("StringSplit", 0),
    ("Tile", 1),
    ("TopK", 1),
    ("Unique", 0),
    ("Unsqueeze", 1),
    ("Upsample", 1),
];

/// One operation of a graph.
#[derive(Debug, Default)]
struct Node {
    kind: String,
    domain: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// It loops or branches.
    has_graph: bool,
}

/// Is the work of the model in this file bounded by the shapes of these inputs of it?
pub(super) fn is_bounded_by_shapes(path: &Path, inputs: &[&str]) -> io::Result<bool> {
    let (mut wire, size) = file_graph::open(path)?;
    let nodes = wire.all_nodes(size)?;
    Ok(nodes.is_some_and(|nodes| is_bounded(&nodes, inputs)))
}

fn is_bounded(nodes: &[Node], inputs: &[&str]) -> bool {
    // Values that what an input says has a part in.
    let mut told: HashSet<&str> = inputs.iter().copied().collect();
    for node in nodes {
        let Some(last) = node.inputs.iter().rposition(|it| told.contains(it.as_str())) else {
            if node.has_graph {
                return false;
            }
            continue;
        };
        if node.depends_on(last) {
            return false;
        }
        if !OF_SHAPES.contains(&&*node.kind) {
            // One that is left out has no name, as inputs that are left out have none.
            let outputs = node.outputs.iter().map(String::as_str);
            told.extend(outputs.filter(|it| !it.is_empty()));
        }
    }
    is_sorted(nodes)
}

/// Is every value made before it is read?
fn is_sorted(nodes: &[Node]) -> bool {
    let mut read: HashSet<&str> = HashSet::new();
    nodes.iter().all(|node| {
        read.extend(node.inputs.iter().map(String::as_str).filter(|it| !it.is_empty()));
        !node.outputs.iter().any(|it| read.contains(it.as_str()))
    })
}

impl Node {
    /// Does its work, or the shape of what it makes, depend on what an input at `position` or one
    /// before it says?
    fn depends_on(&self, position: usize) -> bool {
        let kind = &*self.kind;
        self.has_graph
            || !DOMAINS.contains(&&*self.domain)
            || kind.contains("Sequence")
            || kind.starts_with("Optional")
            || (kind.starts_with("Reduce") && 0 < position)
            || DEPENDING.iter().any(|(name, first)| *name == kind && *first <= position)
    }
}

impl<R: BufRead + Seek> Wire<R> {
    /// The nodes of a model; `None` if it has too many, or functions of its own.
    fn all_nodes(&mut self, end: u64) -> io::Result<Option<Vec<Node>>> {
        let mut found = None;
        while self.at < end {
            match self.field(end)? {
                (7, Field::Bytes(size)) => found = Some(self.nodes_of_graph(self.at + size)?),
                (25, _) => return Ok(None),
                (_, field) => self.skip(&field)?,
            }
        }
        found.ok_or_else(|| Error::new(ErrorKind::InvalidData, "it has no graph"))
    }

    fn nodes_of_graph(&mut self, end: u64) -> io::Result<Option<Vec<Node>>> {
        let mut nodes = Vec::new();
        while self.at < end {
            match self.field(end)? {
                (1, Field::Bytes(size)) if nodes.len() < MAX_NODES => {
                    nodes.push(self.node(self.at + size)?);
                }
                (1, _) => return Ok(None),
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(Some(nodes))
    }

    fn node(&mut self, end: u64) -> io::Result<Node> {
        let mut node = Node::default();
        while self.at < end {
            match self.field(end)? {
                (1, Field::Bytes(size)) => node.inputs.push(self.text(size)?),
                (2, Field::Bytes(size)) => node.outputs.push(self.text(size)?),
                (4, Field::Bytes(size)) => node.kind = self.text(size)?,
                (5, Field::Bytes(size)) => node.has_graph |= self.is_graph(self.at + size)?,
                (7, Field::Bytes(size)) => node.domain = self.text(size)?,
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(node)
    }

    /// Is the value of an attribute a graph, or several?
    fn is_graph(&mut self, end: u64) -> io::Result<bool> {
        let mut is_graph = false;
        while self.at < end {
            let (number, field) = self.field(end)?;
            is_graph |= matches!(number, 6 | 11);
            self.skip(&field)?;
        }
        Ok(is_graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kind: inputs -> outputs` each, of a model with the inputs `x` and `n`; `_` is left out.
    fn check(nodes: &[&str], expected: bool) {
        let node = |text: &&str| {
            let name = |word: &str| word.trim_matches('_').to_owned();
            let words = |text: &str| text.split_whitespace().map(name).collect();
            let (kind, rest) = text.split_once(": ").unwrap();
            let (inputs, outputs) = rest.split_once(" -> ").unwrap();
            let (domain, kind) = kind.split_once('/').unwrap_or(("", kind));
            let (kind, has_graph) = kind.strip_suffix('{').map_or((kind, false), |it| (it, true));
            Node {
                kind: kind.into(),
                domain: domain.into(),
                inputs: words(inputs),
                outputs: words(outputs),
                has_graph,
            }
        };
        let all: Vec<Node> = nodes.iter().map(node).collect();
        assert_eq!(is_bounded(&all, &["x", "n"]), expected, "{nodes:?}");
    }

    #[test]
    fn what_inputs_say_may_be_computed_with_but_may_not_be_a_size() {
        check(&["MatMul: x w -> a", "Relu: a -> y"], true);
        check(&["Reshape: x shape -> y"], true);
        check(&["Reshape: x n -> y"], false);
        check(&["Expand: one n -> y"], false);
        check(&["Expand: x shape -> y"], true);
        check(&["Add: n one -> m", "Cast: m -> k", "ConstantOfShape: k -> y"], false);
        // Sizes come of shapes.
        check(&["Shape: x -> s", "ConstantOfShape: s -> y"], true);
        check(&["Shape: x -> s", "Mul: s n -> m", "Expand: x m -> y"], false);
        check(&["ReduceSum: x axes -> y"], true);
        check(&["ReduceSum: x n -> y"], false);
        check(&["NonZero: x -> y"], false);
        check(&["NonZero: w -> i", "Gather: x i -> y"], true);
        check(&["LSTM: x w r b -> y"], true);
        check(&["LSTM: x w r b n -> y"], false);
    }

    #[test]
    fn what_is_left_out_says_nothing() {
        check(&["LSTM: x w r _ _ h -> _ y"], true);
        check(&["LSTM: x w r -> _ h", "Resize: h _ scales -> y"], true);
        check(&["LSTM: x w r -> _ h", "Resize: h _ n -> y"], false);
    }

    #[test]
    fn loops_branches_sequences_and_what_is_not_known_are_not_bounded() {
        check(&["Relu: x -> y"], true);
        check(&["Loop{: trips -> y"], false);
        check(&["If{: n -> y"], false);
        check(&["SequenceConstruct: x -> y"], false);
        check(&["ai.onnx.ml/TreeEnsembleRegressor: x -> y"], true);
        check(&["com.example/Relu: x -> y"], false);
        check(&["com.example/Relu: w -> v", "Add: x v -> y"], true);
        // Nobody says in which order these run.
        check(&["Expand: one k -> y", "Add: n one -> k"], false);
    }

    #[test]
    fn files_are_read() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/onnx");
        for (model, inputs, expected) in [
            ("add_sub_fp32", &["INPUT0", "INPUT1"][..], true),
            ("identity_fp32", &["INPUT0"], true),
            ("shape_of_input", &["INPUT0"], true),
            ("gather", &["INPUT0"], true),
            ("repeat", &["count"], false),
            ("sequence", &["INPUT0"], false),
        ] {
            let path = models.join(model).join("1/model.onnx");
            assert_eq!(is_bounded_by_shapes(&path, inputs).unwrap(), expected, "{model}");
        }
    }
}
