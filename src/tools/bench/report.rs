//! What a run of the bench reports: levels, models, advice.

use super::{
    advice::{Advice, ClientMachine},
    level::LoadLevel,
    members::Member,
};
use troupe_options as options;

/// Everything there is to report.
pub(super) struct BenchReport<'a> {
    pub(super) arguments: &'a options::BenchArguments,
    pub(super) server: String,
    pub(super) is_decoupled: bool,
    /// Requests of each sequence, where requests were those of sequences.
    pub(super) sequence_length: Option<u32>,
    /// The process that was found to listen.
    pub(super) process: Option<(u32, String)>,
    pub(super) machine: ClientMachine,
    pub(super) members: Vec<Member>,
    pub(super) levels: Vec<LoadLevel>,
    pub(super) advice: Option<Advice>,
}
