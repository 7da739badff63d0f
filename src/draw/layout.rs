//! Layout of a layered graph: a place for every node, line and label, in columns.
//!
//! A tensor that passes a column takes a lane of it, so lines bend only between columns and never
//! run through a node; labels stand where all lines are level, so nothing crosses them.

use std::{collections::HashMap, iter::repeat_n};

use super::{
    crossings::{self, Columns, End, GapLink},
    picture::EnsemblePicture,
    variant::Variant,
};

const LANE_HEIGHT: f64 = 12.0;
/// Pixels around everything.
const MARGIN: f64 = 20.0;
/// Pixels between items of a column.
const BETWEEN: f64 = 20.0;
/// Back and forth over the columns until nodes lie level with their neighbours.
const SWEEPS: usize = 40;

/// Where everything is.
#[derive(Debug, PartialEq)]
pub(super) struct PictureLayout {
    pub(super) width: f64,
    pub(super) height: f64,
    /// In the order of the picture's nodes.
    pub(super) nodes: Vec<NodeBox>,
    pub(super) lines: Vec<TensorLine>,
    pub(super) labels: Vec<TensorLabel>,
}

/// A node's place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct NodeBox {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A piece of a tensor's way: level, a bend between the columns, level again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TensorLine {
    pub(super) flow: usize,
    pub(super) from: (f64, f64),
    pub(super) to: (f64, f64),
    /// Between these two it leaves the one height for the other.
    pub(super) bend: (f64, f64),
    /// It ends at a node.
    pub(super) arrives: bool,
}

/// The name of a tensor, beside the port that writes it; where its ways begin, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TensorLabel {
    pub(super) flow: usize,
    pub(super) at: (f64, f64),
}

/// What a column holds: a node, or the lane of a tensor that passes.
struct ColumnItem {
    width: f64,
    height: f64,
    y: f64,
    is_lane: bool,
}

/// A picture cut into columns: items that are nodes come first, by the numbers of the nodes.
struct CutPicture {
    variant: Variant,
    items: Vec<ColumnItem>,
    columns: Columns,
    gaps: Vec<Vec<GapLink>>,
}

/// The left edge and the width of a column, and where lines bend after it.
struct ColumnSpan {
    left: f64,
    width: f64,
    bend: (f64, f64),
}

impl PictureLayout {
    pub(super) fn of(picture: &EnsemblePicture, variant: Variant) -> PictureLayout {
        let mut cut = CutPicture::of(picture, variant);
        cut.columns = crossings::improve(cut.columns, &cut.gaps, cut.items.len());
        cut.settle();
        let columns = cut.across(picture);
        let mut nodes = vec![NodeBox::default(); picture.nodes.len()];
        for (column, items) in columns.iter().zip(&cut.columns) {
            for item in items.iter().filter(|it| **it < picture.nodes.len()) {
                let ColumnItem { width, height, y, .. } = cut.items[*item];
                let x = column.left + (column.width - width) / 2.0;
                nodes[*item] = NodeBox { x, y, width, height };
            }
        }
        let labels = cut.labelled(picture).map(|flow| {
            let from = picture.flows[flow].from;
            let (node, port) = (&nodes[from.of], variant.port(picture, from.of, from.row, true));
            let (along, across) = variant.beside();
            TensorLabel { flow, at: (node.x + node.width + along, node.y + port + across) }
        });
        let labels = labels.collect();
        let height = cut.items.iter().map(|it| it.y + it.height).fold(0.0, f64::max) + MARGIN;
        let width = columns.last().map_or(MARGIN, |it| it.left + it.width) + MARGIN;
        let layout = PictureLayout { width, height, labels, lines: cut.lines(&columns), nodes };
        if variant.is_down() { layout.turned() } else { layout }
    }

    /// The same from top to bottom.
    fn turned(self) -> PictureLayout {
        let turn = |(x, y): (f64, f64)| (y, x);
        let rectangle =
            |it: NodeBox| NodeBox { x: it.y, y: it.x, width: it.height, height: it.width };
        PictureLayout {
            width: self.height,
            height: self.width,
            nodes: self.nodes.into_iter().map(rectangle).collect(),
            lines: self
                .lines
                .into_iter()
                .map(|it| TensorLine { from: turn(it.from), to: turn(it.to), ..it })
                .collect(),
            labels: self
                .labels
                .into_iter()
                .map(|it| TensorLabel { at: turn(it.at), ..it })
                .collect(),
        }
    }
}

impl CutPicture {
    fn of(picture: &EnsemblePicture, variant: Variant) -> CutPicture {
        let last = picture.nodes.iter().map(|it| it.column).max().unwrap_or(0);
        let item = |node| {
            let (width, height) = variant.size(picture, node);
            ColumnItem { width, height, y: 0.0, is_lane: false }
        };
        let mut cut = CutPicture {
            variant,
            items: (0..picture.nodes.len()).map(item).collect(),
            columns: vec![Vec::new(); last + 1],
            gaps: vec![Vec::new(); last],
        };
        for (index, node) in picture.nodes.iter().enumerate() {
            cut.columns[node.column].push(index);
        }
        for flow in 0..picture.flows.len() {
            cut.lay(picture, flow);
        }
        cut
    }

    /// One way for all readers of a tensor: it branches where they are.
    fn lay(&mut self, picture: &EnsemblePicture, index: usize) {
        let flow = &picture.flows[index];
        let column = |of: usize| picture.nodes[of].column;
        let variant = self.variant;
        let end = |of: usize, row, is_output| End {
            item: of,
            below: variant.port(picture, of, row, is_output),
        };
        let furthest = flow.to.iter().map(|to| column(to.of)).max().unwrap_or(0);
        let mut from = end(flow.from.of, flow.from.row, true);
        for gap in column(flow.from.of)..furthest {
            let readers = flow.to.iter().filter(|to| column(to.of) == gap + 1);
            let mut ends: Vec<End> = readers.map(|to| end(to.of, to.row, false)).collect();
            let lane = End { item: self.items.len(), below: LANE_HEIGHT / 2.0 };
            if gap + 1 < furthest {
                self.items.push(ColumnItem {
                    width: 0.0,
                    height: LANE_HEIGHT,
                    y: 0.0,
                    is_lane: true,
                });
                self.columns[gap + 1].push(lane.item);
                ends.push(lane);
            }
            self.gaps[gap].extend(ends.into_iter().map(|to| GapLink { flow: index, from, to }));
            from = lane;
        }
    }

    /// Puts items level with what they are connected to, as far as their order and sizes let them.
    fn settle(&mut self) {
        let gaps = self.gaps.len();
        for column in 0..self.columns.len() {
            self.place(column, &vec![0.0; self.columns[column].len()]);
        }
        for sweep in 0..SWEEPS {
            let both = SWEEPS / 2 <= sweep;
            for step in 0..=gaps {
                let column = if sweep % 2 == 0 { step } else { gaps - step };
                let before = (both || sweep % 2 == 0).then(|| column.checked_sub(1)).flatten();
                let after = (both || sweep % 2 == 1).then_some(column).filter(|it| *it < gaps);
                self.align(column, before, after);
            }
        }
        let top = self.items.iter().map(|it| it.y).fold(f64::INFINITY, f64::min);
        self.items.iter_mut().for_each(|it| it.y += MARGIN - top);
    }

    /// Moves a column's items towards the mean of what they are linked to over these gaps.
    fn align(&mut self, column: usize, before: Option<usize>, after: Option<usize>) {
        let items = &self.items;
        let mut pulls: HashMap<usize, (f64, f64)> = HashMap::new();
        let mut pull = |near: End, far: End| {
            // Of long ways the lanes agree first: they look best when straight.
            let weight =
                if items[near.item].is_lane && items[far.item].is_lane { 8.0 } else { 1.0 };
            let pull = pulls.entry(near.item).or_default();
            pull.0 += weight * (items[far.item].y + far.below - near.below);
            pull.1 += weight;
        };
        before.iter().flat_map(|it| &self.gaps[*it]).for_each(|it| pull(it.to, it.from));
        after.iter().flat_map(|it| &self.gaps[*it]).for_each(|it| pull(it.from, it.to));
        let wanted = self.columns[column].iter().map(|item| match pulls.get(item) {
            Some((sum, weight)) => sum / weight,
            None => items[*item].y,
        });
        let wanted: Vec<f64> = wanted.collect();
        self.place(column, &wanted);
    }

    /// The places nearest to the wanted ones that keep order and distance: items that would meet
    /// move together (pool adjacent violators).
    fn place(&mut self, column: usize, wanted: &[f64]) {
        let column = &self.columns[column];
        let mut pools: Vec<(f64, usize)> = Vec::new();
        let mut offset = 0.0;
        for (item, wanted) in column.iter().zip(wanted) {
            let mut pool = (wanted - offset, 1);
            while let Some(above) = pools.pop_if(|above| pool.0 < above.0) {
                let count = above.1 + pool.1;
                let sum = above.0 * above.1 as f64 + pool.0 * pool.1 as f64;
                pool = (sum / count as f64, count);
            }
            pools.push(pool);
            offset += self.items[*item].height + BETWEEN;
        }
        let places = pools.into_iter().flat_map(|(place, count)| repeat_n(place, count));
        let mut offset = 0.0;
        for (item, place) in column.iter().zip(places) {
            self.items[*item].y = place + offset;
            offset += self.items[*item].height + BETWEEN;
        }
    }

    fn labelled(&self, picture: &EnsemblePicture) -> impl Iterator<Item = usize> + use<'_> {
        let flows = picture.flows.iter().enumerate();
        let labelled = flows.filter(|(_, flow)| self.variant.labels(picture, flow));
        labelled.map(|(index, _)| index).collect::<Vec<_>>().into_iter()
    }

    /// Columns side by side, with room for the labels and bends between them.
    fn across(&self, picture: &EnsemblePicture) -> Vec<ColumnSpan> {
        let mut room = vec![self.variant.least_room(); self.columns.len()];
        for flow in self.labelled(picture) {
            let flow = &picture.flows[flow];
            let column = picture.nodes[flow.from.of].column;
            room[column] = room[column].max(self.variant.room(picture, flow));
        }
        let mut left = MARGIN;
        let columns = self.columns.iter().enumerate().map(|(index, items)| {
            let width = items.iter().map(|it| self.items[*it].width).fold(0.0, f64::max);
            let bend = left + width + room[index];
            let rise = |it: &GapLink| (self.height_of(it.from) - self.height_of(it.to)).abs();
            let links = self.gaps.get(index).map_or(&[][..], Vec::as_slice);
            let steepest = links.iter().map(rise).fold(0.0, f64::max);
            let next = bend + self.variant.bend(steepest);
            let column = ColumnSpan { left, width, bend: (bend, next) };
            left = next + 10.0;
            column
        });
        columns.collect()
    }

    fn height_of(&self, end: End) -> f64 {
        self.items[end.item].y + end.below
    }

    fn lines(&self, columns: &[ColumnSpan]) -> Vec<TensorLine> {
        let edge = |item: usize, column: &ColumnSpan, right: bool| match &self.items[item] {
            lane if lane.is_lane => column.left,
            node => {
                let middle = column.left + column.width / 2.0;
                middle + if right { node.width } else { -node.width } / 2.0
            }
        };
        let mut lines = Vec::new();
        for (gap, sides) in self.gaps.iter().zip(columns.windows(2)) {
            lines.extend(gap.iter().map(|link| TensorLine {
                flow: link.flow,
                from: (edge(link.from.item, &sides[0], true), self.height_of(link.from)),
                to: (edge(link.to.item, &sides[1], false), self.height_of(link.to)),
                bend: sides[0].bend,
                arrives: !self.items[link.to.item].is_lane,
            }));
        }
        lines
    }
}
