//! The policy as workers and GPU workers see it.

use std::time::Instant;

/// Answers how urgent the GPU's work is, and is told what the GPU has decoded.
///
/// [`Jobs`](super::jobs::Jobs) implements it: one lock guards the policy and the queues that it decides about.
pub trait Pace: Send + Sync {
    /// Whether the GPU worker should decode its next group on the SM partition and leave the other multiprocessors to the model.
    fn keeps_to_sm_partition(&self) -> bool;

    /// The GPU has decoded chunks of `bytes` decoded bytes in total. The first of them was read at `since`.
    fn decoded_on_gpu(&self, bytes: u64, since: Instant);
}
