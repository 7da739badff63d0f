//! The variants a picture is drawn in, and the sizes of its parts in each.

use super::{
    picture::{EnsemblePicture, NodeKind, PictureNode, TensorPath},
    status::{Figure, LiveStep},
    text_width::{short, shorter, width},
};

/// Sizes of fonts.
pub(super) const TITLE: f64 = 13.0;
pub(super) const SMALL: f64 = 11.0;
/// Of a step's node: its upper part, then one row per port.
pub(super) const HEADER: f64 = 28.0;
pub(super) const ROW: f64 = 22.0;
/// Between a node's edge and its text.
pub(super) const PAD: f64 = 10.0;
/// Of a step with numbers: its upper part, and two rows of four cells.
pub(super) const CARD_HEADER: f64 = 34.0;
pub(super) const CELL: (f64, f64) = (69.0, 36.0);
/// The height of a tensor's label: its name and its rate, or its rate alone.
pub(super) const LABEL: (f64, f64) = (36.0, 20.0);

const CLIENT_HEIGHT: f64 = 42.0;
/// Figures that there is room for on a narrow screen.
const MAIN_FIGURES: [&str; 8] =
    ["p50", "p99", "rate", "errors", "taken", "backlog", "cache", "coalesced"];
/// A line of what a config says.
pub(super) const FACT: f64 = 16.0;

/// What is drawn, and in which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// What the config says, from left to right: every port by its name.
    Ports,
    /// What happens, from top to bottom: numbers in steps and on tensors.
    Cards,
    /// The same for narrow screens: half of the numbers.
    NarrowCards,
    /// The same at a glance, from left to right: names only.
    Overview,
}

impl Variant {
    /// Tensors go from top to bottom.
    pub(super) fn is_down(self) -> bool {
        matches!(self, Variant::Cards | Variant::NarrowCards)
    }

    /// A node's size in the direction that tensors go, and across.
    pub(super) fn size(self, picture: &EnsemblePicture, node: usize) -> (f64, f64) {
        let it = &picture.nodes[node];
        let (name, note) = (width(&short(&it.name), TITLE) * 1.06, width(&it.note, SMALL));
        match (self, it.kind) {
            (Variant::Ports, NodeKind::Step) => {
                let ports = widest(&it.inputs) + 2.0 * PAD + widest(&it.outputs);
                let rows = it.inputs.len().max(it.outputs.len());
                let height = HEADER + ROW * rows as f64 + 4.0 + self.facts_height(it);
                let facts = widest(&it.facts);
                ((name + 1.5 * PAD + note).max(ports).max(facts) + 2.0 * PAD, height)
            }
            (Variant::Ports, _) => (name.max(note) + 3.0 * PAD, CLIENT_HEIGHT),
            (Variant::Cards | Variant::NarrowCards, NodeKind::Step) => {
                let note = if self == Variant::Cards { note + 2.0 * PAD } else { 0.0 };
                let cells = self.columns() as f64 * CELL.0 + PAD;
                let title = name + note + 3.0 * PAD;
                let facts =
                    if self == Variant::Cards { widest(&it.facts) + 2.0 * PAD } else { 0.0 };
                let across = cells.max(title).max(facts).max(self.labels_of(picture, node));
                (self.card_height(it), across)
            }
            (Variant::Cards | Variant::NarrowCards, _) => {
                let text = name.max(note) + 3.0 * PAD;
                (CLIENT_HEIGHT, text.max(self.labels_of(picture, node)))
            }
            (Variant::Overview, NodeKind::Step) => (name.max(96.0) + 3.6 * PAD, 44.0),
            (Variant::Overview, _) => (width(&short(&it.name), SMALL) + 2.4 * PAD, 26.0),
        }
    }

    /// How far from a node's upper or left edge a port lies, across.
    pub(super) fn port(
        self,
        picture: &EnsemblePicture,
        node: usize,
        row: usize,
        is_output: bool,
    ) -> f64 {
        let it = &picture.nodes[node];
        match self {
            Variant::Ports => below(it, row),
            Variant::Overview => self.size(picture, node).1 / 2.0,
            Variant::Cards | Variant::NarrowCards => {
                let ports = if is_output { it.outputs.len() } else { it.inputs.len() };
                self.size(picture, node).1 * (row as f64 + 0.5) / ports.max(1) as f64
            }
        }
    }

    /// Room for a tensor's label in the direction that tensors go.
    pub(super) fn room(self, picture: &EnsemblePicture, flow: &TensorPath) -> f64 {
        match self {
            Variant::Ports => width(&short(&flow.tensor), SMALL) + 16.0,
            Variant::Cards | Variant::NarrowCards => self.label(picture, flow).1 + 14.0,
            Variant::Overview => 0.0,
        }
    }

    /// Room behind a column without labels.
    pub(super) fn least_room(self) -> f64 {
        if self == Variant::Overview { 4.0 } else { 14.0 }
    }

    /// How long the bends between columns are, by how far the steepest of their lines rises.
    pub(super) fn bend(self, rise: f64) -> f64 {
        match self {
            Variant::Ports => (0.35 * rise).clamp(32.0, 120.0),
            Variant::Cards | Variant::NarrowCards => (0.3 * rise).clamp(32.0, 90.0),
            Variant::Overview => (0.35 * rise).clamp(16.0, 48.0),
        }
    }

    /// Where a label begins, seen from the port: in the direction that tensors go, and across.
    pub(super) fn beside(self) -> (f64, f64) {
        if self.is_down() { (7.0, 0.0) } else { (9.0, -5.0) }
    }

    /// Room across for the labels of what a node writes.
    fn labels_of(self, picture: &EnsemblePicture, node: usize) -> f64 {
        let outputs = picture.flows.iter().filter(|flow| flow.from.of == node);
        let widest = outputs.map(|flow| self.label(picture, flow).0).fold(0.0, f64::max);
        (widest + 12.0) * picture.nodes[node].outputs.len() as f64
    }

    /// The size of the label that stands on a tensor's way.
    pub(super) fn label(self, picture: &EnsemblePicture, flow: &TensorPath) -> (f64, f64) {
        // Rates change; the widest is this.
        let rate = width("999 MB/s", SMALL);
        if !is_inner(picture, flow) {
            return (rate + 22.0, LABEL.1);
        }
        let name = width(&self.label_name(flow), SMALL);
        let note = flow.live.as_ref().map_or(0.0, |it| width(&it.note, SMALL) + 14.0);
        let note = if self == Variant::NarrowCards { 0.0 } else { note };
        (name.max(note + rate) + 22.0, LABEL.0)
    }

    /// A tensor's name as its label has it.
    pub(super) fn label_name(self, flow: &TensorPath) -> String {
        if self == Variant::NarrowCards { shorter(&flow.tensor, 14) } else { short(&flow.tensor) }
    }

    /// How many numbers of a step stand side by side.
    pub(super) fn columns(self) -> usize {
        if self == Variant::NarrowCards { 2 } else { 4 }
    }

    /// The figures of a step that are shown, row by row.
    pub(super) fn figures(self, of: &LiveStep) -> Vec<Vec<&Figure>> {
        let is_main = |it: &&Figure| self != Variant::NarrowCards || MAIN_FIGURES.contains(&it.key);
        let rows = [&of.figures[..]].into_iter().chain(of.more.iter().map(Vec::as_slice));
        let shown = rows.map(|row| row.iter().filter(is_main).collect::<Vec<_>>());
        let cut = |row: Vec<_>| row.chunks(self.columns()).map(<[_]>::to_vec).collect::<Vec<_>>();
        shown.flat_map(cut).collect()
    }

    /// Of a step with numbers.
    fn card_height(self, node: &PictureNode) -> f64 {
        let rows = node.live.as_ref().map_or(2, |it| self.figures(it).len());
        CARD_HEADER + rows as f64 * CELL.1 + self.facts_height(node) + 14.0
    }

    /// The height of what the config of a step says.
    pub(super) fn facts_height(self, node: &PictureNode) -> f64 {
        match self {
            Variant::NarrowCards => 0.0,
            _ if node.facts.is_empty() => 0.0,
            _ => FACT * node.facts.len() as f64 + 4.0,
        }
    }

    /// Does the tensor have a label? One that only the client reads has its name on the client's
    /// node; there are numbers on every one.
    pub(super) fn labels(self, picture: &EnsemblePicture, flow: &TensorPath) -> bool {
        match self {
            Variant::Ports => is_inner(picture, flow),
            Variant::Cards | Variant::NarrowCards => {
                let has_rate = flow.live.as_ref().is_some_and(|it| !it.rate.is_empty());
                !flow.to.is_empty() && (has_rate || is_inner(picture, flow))
            }
            Variant::Overview => false,
        }
    }
}

/// How far below a node's upper edge a port lies, in the variant with ports.
pub(super) fn below(node: &PictureNode, row: usize) -> f64 {
    match node.kind {
        NodeKind::Step => HEADER + ROW * row as f64 + ROW / 2.0,
        NodeKind::Input | NodeKind::Output => CLIENT_HEIGHT / 2.0,
    }
}

/// It goes from a step to a step.
pub(super) fn is_inner(picture: &EnsemblePicture, flow: &TensorPath) -> bool {
    let kind = |node: usize| picture.nodes[node].kind;
    kind(flow.from.of) == NodeKind::Step && flow.to.iter().any(|to| kind(to.of) == NodeKind::Step)
}

fn widest(names: &[String]) -> f64 {
    names.iter().map(|it| width(&short(it), SMALL)).fold(0.0, f64::max)
}
