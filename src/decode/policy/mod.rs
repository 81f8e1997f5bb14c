//! Who decodes the next chunk, where both the CPU and the GPU could.
//!
//! One principle: in steady state the rate at which batches are taken is the training's speed, slowed down by what the reader takes from its
//! GPU. Of ways that give the same rate, the one with the least work for the GPU is right; more work for the GPU is right only where that
//! makes the rate higher. Cores that idle cost nothing. So:
//!
//! - While the training does not wait, cores decode what they will have done in good time before the training needs it, by their rate, by the
//!   training's and by what is in store, and the GPU only what lies behind that. Cores that keep up get everything.
//! - While the training waits, the GPU takes all that it would have done before the cores. Both together can be slower than one of them,
//!   because they share the host's cores and memory. So both, the GPU alone, and cores that promise more than that are tried for a while, again
//!   from time to time, and the fastest is kept; of two that are as fast, the one that leaves more of the GPU to the model.
//!
//! Whether the training waits is read from the calls for batches: see [`Training`]. A core that takes longer for a chunk than a batch is in flight
//! gets none: the training would wait for it.
//!
//! What the GPU decodes while the training does not wait costs the model less on an SM partition than on all multiprocessors, where
//! both take turns. Whether the partition is fast enough is tried.
#![forbid(unsafe_code)]

mod backlog;
#[cfg(test)]
mod queue_simulation;
mod sides;
#[cfg(test)]
mod simulation;
mod sm_partition;
mod training;

pub use backlog::Backlog;
use sides::{Side, Sides};
use sm_partition::SmPartition;
use training::Training;

/// Decides by what it is told. Times are in seconds from any origin.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    training: Training,
    sides: Sides,
    partition: SmPartition,
    /// Batches in flight when the executor called last. Decoded bytes that were asked for, and batches that these are for; later ones count more.
    in_flight: u64,
    asked: (f64, f64),
    /// Cores, chunks that they have decoded, bytes in a second of one of them and its seconds for a chunk.
    cores: u64,
    chunks: u64,
    core_rate: f64,
    core_seconds: f64,
    /// Jobs that cores work on. When a core was done last, or the first of them began.
    busy: u64,
    core_since: f64,
    /// Seconds from a chunk's arrival on the GPU to its elements in the outputs.
    gpu_latency: f64,
}

impl Policy {
    /// A policy for `cores` cores.
    pub fn new(cores: u64) -> Self {
        Self { cores, ..Self::default() }
    }

    /// Cores keep what they will have done in this share of the time until the training needs it: neither rates nor steps are as even as
    /// their means. In simulation 0.35 to 0.6 are as good, and 0.8 is not.
    const IN_GOOD_TIME: f64 = 0.5;
    /// The weight of a new figure in a mean.
    const WEIGHT: f64 = 0.1;
    /// How much a batch counts for the bytes of a batch when the next one is wanted.
    const KEEPS: f64 = 0.99;
    /// How many times as long as later ones a core's first chunk may take.
    const FIRST: f64 = 8.0;
    /// Cores are in time if they decode a chunk within this share of the time in which as many batches are taken as are in flight.
    const IN_TIME: f64 = 0.85;
    /// After this many times the seconds that a core needs for a chunk, cores that are not in time are taken to be twice as fast, so that
    /// they are asked again.
    const FORGETS: f64 = 100.0;

    /// Chunks of `bytes` decoded bytes that both sides could decode were asked for.
    pub fn pushed(&mut self, bytes: u64) {
        self.asked.0 += bytes as f64;
    }

    /// The executor calls for the next batch. `waits`: it is not complete. `submitted` batches are in flight. Returns whether that changes who
    /// decodes.
    pub fn wanted(&mut self, waits: bool, submitted: u64, now: f64) -> bool {
        let before = (self.gpu_helps(), self.cpu_helps());
        self.asked = match self.asked.1 > 0.0 {
            true => (self.asked.0 * Self::KEEPS, self.asked.1 * Self::KEEPS + 1.0),
            false => (self.asked.0, submitted as f64),
        };
        self.in_flight = submitted;
        self.training.wanted(submitted, now);
        if !self.cores_are_in_time() && now - self.core_since > Self::FORGETS * self.core_seconds {
            (self.core_seconds, self.core_since) = (0.5 * self.core_seconds, now);
        }
        if self.partition.wanted(waits, submitted, now) {
            self.sides.pause(now);
        }
        // With few chunks in flight some of the cores have none.
        let in_flight = submitted as f64 * self.batch_bytes() / self.core_seconds.max(1e-9);
        let cores_rate = self.cores_rate(now).min(in_flight);
        self.sides.batch(self.training.waits(), cores_rate, self.core_seconds.max(self.gpu_latency), now);
        if !waits {
            self.training.handed_over(now);
        }
        before != (self.gpu_helps(), self.cpu_helps())
    }

    /// The consumer got a batch for which it had waited.
    pub fn handed_over(&mut self, now: f64) {
        self.partition.handed_over(now);
        self.training.handed_over(now);
    }

    /// A core begins to work on a chunk.
    pub fn cpu_begins(&mut self, now: f64) {
        if self.busy == 0 {
            self.core_since = now;
        }
        self.busy += 1;
    }

    /// A core has decoded a chunk of `bytes` decoded bytes in `seconds`.
    pub fn cpu_ends(&mut self, bytes: u64, seconds: f64, now: f64) {
        self.chunks += 1;
        // Each core's first chunk takes several times as long as later ones: the core's memory is mapped then.
        let seconds = if self.chunks > self.cores { seconds } else { seconds / Self::FIRST };
        self.core_rate = Self::mean(self.core_rate, bytes as f64 / seconds.max(1e-9));
        self.core_seconds = Self::mean(self.core_seconds, seconds);
        self.core_since = now;
        self.busy = self.busy.saturating_sub(1);
        self.sides.done(bytes, false, now);
    }

    /// A core is done with a chunk of which there was nothing to decode.
    pub fn cpu_gives_up(&mut self) {
        self.busy = self.busy.saturating_sub(1);
    }

    /// The GPU has decoded chunks of `bytes` decoded bytes, of which the first arrived `latency` seconds ago.
    pub fn gpu_ends(&mut self, bytes: u64, latency: f64, now: f64) {
        self.gpu_latency = Self::mean(self.gpu_latency, latency);
        self.sides.done(bytes, true, now);
    }

    /// Whether there is time for copies in place of a kernel, because enough batches are complete.
    pub fn has_time(&self, ready: u64, submitted: u64) -> bool {
        !self.training.waits() && ready >= 2 && 2 * ready >= submitted
    }

    /// Whether the GPU should process its next chunks on the SM partition, where it is slower and takes less from the model.
    /// `decodes`: they are decoded and not only gathered.
    pub fn keeps_to_sm_partition(&mut self, decodes: bool) -> bool {
        let keeps = self.partition.is_allowed() && !self.training.waits();
        if keeps && decodes {
            self.partition.note_use();
        }
        keeps
    }

    /// Whether the GPU may take chunks that the CPU could decode, once they are more than the CPU keeps.
    pub fn gpu_helps(&self) -> bool {
        self.sides.side() != Side::Cpu
    }

    /// Whether the CPU may take chunks that the GPU could decode.
    pub fn cpu_helps(&self) -> bool {
        match self.sides.side() {
            Side::Cpu => true,
            Side::Both => self.cores_are_in_time(),
            Side::Gpu => false,
        }
    }

    /// The next chunk of the backlog for a core.
    pub fn next_for_cpu<T>(&self, backlog: &mut Backlog<T>) -> Option<T> {
        if self.cpu_helps() { backlog.for_cpu() } else { None }
    }

    /// The next chunk of the backlog for the GPU.
    pub fn next_for_gpu<T>(&self, backlog: &mut Backlog<T>, now: f64) -> Option<T> {
        if self.gpu_helps() { backlog.for_gpu(self.reserve_bytes(backlog.bytes(), now)?) } else { None }
    }

    /// Decoded bytes of chunks that are left to the CPU, of `waiting` bytes that nobody has taken. None: all.
    fn reserve_bytes(&self, waiting: u64, now: f64) -> Option<u64> {
        if !self.cpu_helps() {
            return Some(0);
        }
        let rate = self.cores_rate(now);
        // What they have done before the GPU would have.
        let before_gpu = rate * (self.gpu_latency - self.core_seconds).max(0.0);
        let batch = self.batch_bytes();
        let (Some(step), true) = (self.training.step(), batch > 0.0) else {
            return Some(before_gpu as u64);
        };
        // The first of the waiting chunks belongs to a batch that the training needs after this time. A later one is needed later by
        // what the training takes meanwhile, and is begun with later by what the cores decode meanwhile.
        let ahead = (self.in_flight as f64 - waiting as f64 / batch).max(0.0);
        let needed_in = self.training.starves_in(now) + step * ahead;
        let spare = Self::IN_GOOD_TIME * needed_in - self.core_seconds;
        let later = 1.0 / rate - Self::IN_GOOD_TIME * step / batch;
        match spare > 0.0 {
            true if later <= 0.0 => None,
            true => Some((spare / later).max(before_gpu) as u64),
            false => Some(before_gpu as u64),
        }
    }

    /// Bytes that all cores together decode in a second. Of cores that stand still, fewer and fewer are expected.
    fn cores_rate(&self, now: f64) -> f64 {
        let silent = if self.busy > 0 { now - self.core_since } else { 0.0 };
        self.core_rate * self.cores as f64 * self.core_seconds / self.core_seconds.max(silent).max(1e-9)
    }

    fn batch_bytes(&self) -> f64 {
        if self.asked.1 > 0.0 { self.asked.0 / self.asked.1 } else { 0.0 }
    }

    /// Whether a batch does not wait for a chunk that a core began with.
    fn cores_are_in_time(&self) -> bool {
        let interval = self.training.interval();
        interval == 0.0 || self.core_seconds <= Self::IN_TIME * interval * self.in_flight as f64
    }

    /// Who decodes and why, in words.
    pub fn explanation(&self) -> String {
        let keep_up = self
            .training
            .step()
            .is_some_and(|step| self.core_rate * self.cores as f64 * step >= self.batch_bytes());
        let who = match (self.training.waits(), self.sides.side()) {
            (_, Side::Both) if !self.cores_are_in_time() => {
                "the GPU decodes, because a core needs longer for a chunk than batches may wait"
            }
            (false, Side::Both) if keep_up => "the CPU decodes, because it keeps up with the training",
            (false, Side::Both) => "the CPU decodes, and the GPU what the CPU would not have done in time",
            (false, Side::Cpu) => "the CPU decodes, because that was fastest when the training waited",
            (false, Side::Gpu) => "the GPU decodes, because that was fastest when the training waited",
            (true, Side::Cpu) => "the CPU decodes, because DALI waits for batches",
            (true, Side::Both) => "CPU and GPU decode, because DALI waits for batches",
            (true, Side::Gpu) => "the GPU decodes, because DALI waits for batches",
        };
        format!("{who}; {}{}", self.taken_in_words(), self.sides.in_words())
    }

    /// At which rate batches are taken, in words.
    pub fn taken_in_words(&self) -> String {
        match self.training.interval() {
            interval if interval > 0.0 => format!("{:.1} batches are taken in a second", 1.0 / interval),
            _ => "no batches were taken yet".into(),
        }
    }

    fn mean(old: f64, new: f64) -> f64 {
        if old == 0.0 { new } else { old + Self::WEIGHT * (new - old) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_stand_still_keep_nothing_back() {
        let mut policy = Policy::new(8);
        policy.gpu_ends(1, 0.2, 0.0);
        (0..8).for_each(|_| policy.cpu_begins(0.0));
        policy.cpu_ends(1 << 30, 0.8, 0.1);
        let reserved = |policy: &Policy, now: f64| policy.reserve_bytes(u64::MAX, now).unwrap();
        assert!(reserved(&policy, 0.1) > 1 << 29);
        // Seven of them are at work still, and nothing comes.
        assert!(reserved(&policy, 100.0) < 1 << 24);
    }

    #[test]
    fn the_policy_says_who_decodes_and_why() {
        let mut policy = Policy::new(4);
        assert!(policy.explanation().ends_with("no batches were taken yet"));
        policy.pushed(4 * 40_000_000);
        policy.cpu_begins(0.0);
        policy.cpu_ends(10_000_000, 0.08, 0.01);
        // The first two calls fill DALI's queue, and each later one comes when the training has taken a batch.
        for call in 0..20 {
            policy.wanted(false, 4, 0.1 * f64::from(call) + if call < 2 { 0.199 } else { 0.3 });
            policy.pushed(40_000_000);
        }
        let enough =
            "the CPU decodes, because it keeps up with the training; 9.5 batches are taken in a second";
        assert_eq!(policy.explanation(), enough);
        for batch in 0..60 {
            let now = 3.0 + 0.2 * f64::from(batch);
            policy.wanted(true, 4, now);
            policy.gpu_ends(40_000_000, 0.05, now + 0.19);
            policy.handed_over(now + 0.199);
        }
        let waits = "decodes, because DALI waits for batches; 5.";
        let explanation = policy.explanation();
        assert!(explanation.contains(waits) && explanation.contains("; GB/s: GPU 0.2"), "{explanation}");
    }

    #[test]
    fn a_pause_of_the_consumer_does_not_decide_who_decodes() {
        const IN_FLIGHT: u64 = 4;
        let rates = [10e3, 8e3, 4.5e3];
        for pause in 0..200 {
            let mut policy = Policy { core_rate: rates[2] / 16.0, core_seconds: 0.01, ..Policy::new(16) };
            let (mut now, mut by_gpu) = (0.0, 0);
            for batch in 0..500 {
                policy.pushed(1000);
                if batch == pause {
                    now += 60.0;
                    // What was completed meanwhile.
                    for _ in 0..IN_FLIGHT {
                        policy.sides.done(1000, true, now);
                        policy.wanted(false, IN_FLIGHT, now);
                    }
                }
                now += 0.0005;
                policy.wanted(true, IN_FLIGHT, now);
                let side = policy.sides.side();
                now += 1000.0 / rates[side as usize];
                policy.sides.done(1000, side != Side::Cpu, now);
                policy.handed_over(now);
                by_gpu += u64::from(batch >= 300 && side == Side::Gpu);
            }
            assert!(by_gpu > 190, "pause at {pause}: {by_gpu}");
        }
    }
}
