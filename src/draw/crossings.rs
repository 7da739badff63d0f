//! Crossing reduction: orders columns so that few lines cross, by the barycentre heuristic.

use std::collections::HashMap;

/// A line between neighbouring columns: items by number, and where along each it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct GapLink {
    pub(super) flow: usize,
    pub(super) from: End,
    pub(super) to: End,
}

/// Where a line meets an item: how far below the item's upper edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) item: usize,
    pub(super) below: f64,
}

/// Columns from left to right, each a list of items from top to bottom.
pub(super) type Columns = Vec<Vec<usize>>;

/// Sweeps back and forth; more of them hardly ever find anything.
const SWEEPS: usize = 24;

/// The best order found; `gaps[n]` are the links between columns `n` and `n + 1`.
pub(super) fn improve(mut columns: Columns, gaps: &[Vec<GapLink>], items: usize) -> Columns {
    let mut ranks = vec![0.0; items];
    columns.iter().for_each(|column| rank(column, &mut ranks));
    let mut fewest = crossings(gaps, &ranks);
    let mut best = columns.clone();
    for sweep in 0..SWEEPS {
        if fewest == 0 {
            break;
        }
        let forward = sweep % 2 == 0;
        for step in 0..gaps.len() {
            let gap = if forward { step } else { gaps.len() - 1 - step };
            let column = &mut columns[if forward { gap + 1 } else { gap }];
            sort(column, &gaps[gap], forward, &ranks);
            rank(column, &mut ranks);
        }
        let found = crossings(gaps, &ranks);
        if found < fewest {
            (fewest, best) = (found, columns.clone());
        }
    }
    best
}

fn rank(column: &[usize], ranks: &mut [f64]) {
    for (position, item) in column.iter().enumerate() {
        ranks[*item] = position as f64;
    }
}

/// The position of an end among all ends of its column; no item is this high.
fn position(end: End, ranks: &[f64]) -> f64 {
    ranks[end.item] + end.below / 1e6
}

/// Sorts by the mean position of an item's neighbours; an item without any stays where it is.
fn sort(column: &mut [usize], gap: &[GapLink], forward: bool, ranks: &[f64]) {
    let mut sums: HashMap<usize, (f64, f64)> = HashMap::new();
    for link in gap {
        let (far, near) = if forward { (link.from, link.to) } else { (link.to, link.from) };
        // Lines that end low on an item pull its neighbours up, so that they run straight.
        let sum = sums.entry(near.item).or_default();
        sum.0 += position(far, ranks) - near.below / 1e7;
        sum.1 += 1.0;
    }
    let key = |item: &usize| sums.get(item).map_or(ranks[*item], |(sum, count)| sum / count);
    column.sort_by(|left, right| key(left).total_cmp(&key(right)));
}

fn crossings(gaps: &[Vec<GapLink>], ranks: &[f64]) -> usize {
    gaps.iter().map(|gap| crossings_of(gap, ranks)).sum()
}

/// Pairs of lines whose ends are in opposite order.
pub(super) fn crossings_of(gap: &[GapLink], ranks: &[f64]) -> usize {
    let ends = |link: &GapLink| (position(link.from, ranks), position(link.to, ranks));
    let mut ends: Vec<(f64, f64)> = gap.iter().map(ends).collect();
    ends.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.total_cmp(&right.1)));
    let mut above: Vec<f64> = Vec::with_capacity(ends.len());
    let mut found = 0;
    for (_, end) in ends {
        let place = above.partition_point(|it| *it <= end);
        found += above.len() - place;
        above.insert(place, end);
    }
    found
}
