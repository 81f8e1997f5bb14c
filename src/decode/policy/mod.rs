//! Who decodes the next chunk, where both the CPU and the GPU could.
//!
//! What the GPU decodes is taken from the model that trains on it, and cores that idle cost nothing. So the CPU decodes what it can in time.
//! [`Policy::gpu_helps`] and [`Policy::cpu_helps`] say at each moment which of them may take chunks, by the submitted batches, and
//! [`Policy::next_for_gpu`] and [`Policy::next_for_cpu`] hand the chunks out:
//!
//! | submitted batches | who decodes |
//! |---|---|
//! | most are complete | the CPU |
//! | fewer than a quarter are complete | both, until three quarters are |
//! | the consumer has waited for one, and not yet gone without a wait for long | the GPU, both or the CPU, whichever decodes fastest |
//!
//! - The GPU takes as long for one chunk as for hundreds at once, far longer than a core takes for one. So while both decode, the CPU keeps the chunks
//!   that are needed first, as many as it decodes in the time that the GPU takes for one, and the GPU takes the chunks behind them.
//! - Which is fastest depends on codec, chunks and machine, and both together can be slower than one of them, because they share the host's
//!   cores and memory. So `trials` tries each for a while, again from time to time, and keeps the best; of two that are as good, the one that leaves
//!   more of the GPU to others. Cores that could not decode a good part of what the GPU does are not tried alone.
//! - Cores that are of no use get nothing while the GPU decodes: where one takes longer for a chunk than a batch is in flight, because the
//!   consumer would wait for it; and where all of them could decode only a small part of what is taken, because they would spare the GPU
//!   little, and a training's own threads lose more to them.
//! - What the GPU decodes while the consumer does not wait costs the model less on an SM partition than on all multiprocessors, where both
//!   take turns. Whether the partition is fast enough is tried (`sm_partition`).
//!
//! Cores are decoder threads here. On the GPU backend, where the GPU could decode all, they run only on cores that no other thread wants
//! (`lower_priority` in `reader/running.rs`), so that how fast they are changes with what else the process does.
#![forbid(unsafe_code)]

mod backlog;
#[cfg(test)]
mod queue_simulation;
#[cfg(test)]
mod simulation;
mod sm_partition;
mod trials;

pub use backlog::Backlog;
use sm_partition::SmPartition;
use trials::{Side, Trials};

/// Decides by what it is told. Times are in seconds from any origin.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    helping: bool,
    /// Whether the batch that the consumer wanted last was there.
    served: bool,
    partition: SmPartition,
    /// Whether the consumer has waited for a batch, and has not gone without a wait for long since ([`Policy::SERVED_LONGER`]).
    waited_for: bool,
    /// Seconds of the consumer's longest wait, of which each later wait leaves the share `FADES`.
    longest_wait: f64,
    /// When the consumer's last wait ended.
    waited_until: f64,
    trials: Trials,
    /// Decoded bytes that the CPU gets done in a second.
    cpu_rate: f64,
    /// Seconds from a chunk's arrival on the GPU to its elements in the outputs.
    gpu_latency: f64,
    /// Chunks that cores have decoded, and when the last one was decoded, or cores were taken to be faster because none was for long.
    chunks: u64,
    core_ended: f64,
    /// Decoded bytes of one core in a second, and of a chunk.
    core_rate: f64,
    chunk_bytes: f64,
    /// Batches that were submitted when the consumer asked last.
    in_flight: u64,
    /// Jobs that decoder threads work on, and how many of these threads there are.
    busy: u64,
    cores: u64,
    window: Window,
    /// When the consumer asked for its last batch, and the mean of the seconds between two such times.
    asked: f64,
    interval: f64,
    /// Decoded bytes of the chunks that were submitted since the consumer asked last, and the mean of those between two such times.
    submitted_bytes: u64,
    bytes_per_batch: f64,
}

/// What the CPU has decoded since a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: f64,
    bytes: u64,
}

impl Policy {
    /// A policy for `cores` cores.
    pub fn new(cores: u64) -> Self {
        Self { cores, ..Self::default() }
    }

    /// The GPU begins to help when fewer than this share of the submitted batches are complete.
    const LOW: (u64, u64) = (1, 4);
    /// The GPU goes on to help until this share of the submitted batches is complete.
    const HIGH: (u64, u64) = (3, 4);
    /// The GPU keeps to its SM partition while at least one of this many submitted batches is complete; with fewer in flight always.
    const IN_STORE: u64 = 8;
    /// The consumer counts as one that waits until it has gone without a wait for this many times its longest wait, and most batches are complete. With fewer than
    /// four batches in flight it is twice the number of these: all batches in flight may be completed together, and all but the first of them
    /// come without a wait then.
    const SERVED_LONGER: u64 = 8;
    /// The share of the longest wait that still counts after another one.
    const FADES: f64 = 0.8;
    /// Seconds over which rates are measured.
    const WINDOW: f64 = 0.05;
    /// The weight of a new figure in a mean.
    const WEIGHT: f64 = 0.3;
    /// That of a chunk in the rate of a core and in the bytes of a chunk. What cores do while others need them for a moment, as when a reader begins,
    /// says little.
    const CORE_WEIGHT: f64 = 0.05;
    /// That of a batch in the mean interval and the mean bytes of a batch.
    const INTERVAL_WEIGHT: f64 = 0.1;
    /// A consumer that wants no batch for longer than this many mean intervals pauses: what is beyond is left out of the mean.
    const PAUSE: f64 = 8.0;
    /// How many times as long as later ones a core's first chunk is taken to be.
    const FIRST: f64 = 8.0;
    /// Cores are in time if they decode a chunk within this share of the time in which as many batches are taken as are in flight.
    const IN_TIME: f64 = 0.7;
    /// Cores are of use if all of them could decode this share of what is decoded.
    const LEAST_SHARE: f64 = 0.2;
    /// After this many times the seconds that a core needs for a chunk, cores that got none are taken to be twice as fast as before, so
    /// that they are tried again at some time.
    const FORGETS: f64 = 200.0;

    /// `ready` of the `submitted` batches are complete.
    pub fn fill(&mut self, ready: u64, submitted: u64) {
        // With one batch in flight none is complete each time that the consumer has taken one.
        if submitted > 1 && ready * Self::LOW.1 < submitted * Self::LOW.0 {
            self.helping = true;
        }
        if Self::is_full(ready, submitted) {
            self.helping = false;
        }
    }

    fn is_full(ready: u64, submitted: u64) -> bool {
        ready * Self::HIGH.1 >= submitted * Self::HIGH.0
    }

    /// The consumer wants the next batch. `waits`: it has to wait for it. `ready` of the `submitted` batches are complete. Returns
    /// whether that changes who decodes.
    pub fn wanted(&mut self, waits: bool, ready: u64, submitted: u64, now: f64) -> bool {
        let before = (self.gpu_helps(), self.cpu_helps());
        let bytes = std::mem::take(&mut self.submitted_bytes) as f64;
        if self.asked > 0.0 {
            let known = self.interval > 0.0;
            let (weight, most) = if known {
                (Self::INTERVAL_WEIGHT, Self::PAUSE * self.interval)
            } else {
                (1.0, f64::INFINITY)
            };
            // An interval is the consumer's wait for the last batch and its own time after that, of which a pause is left out.
            let got = self.asked.max(self.waited_until);
            self.interval += weight * (got - self.asked + (now - got).min(most) - self.interval);
            self.bytes_per_batch += weight * (bytes - self.bytes_per_batch);
        }
        self.asked = now;
        self.in_flight = submitted;
        if !self.cores_are_of_use() && now - self.core_ended > Self::FORGETS * self.core_seconds() {
            (self.core_rate, self.core_ended) = (2.0 * self.core_rate, now);
        }
        self.helping |= waits;
        if self.partition.wanted(waits, submitted, now) {
            self.trials.interrupt();
        }
        self.served = !waits;
        if waits {
            self.waited_for = true;
        } else if Self::is_full(ready, submitted)
            && now - self.waited_until >= Self::SERVED_LONGER.min(2 * submitted) as f64 * self.longest_wait
        {
            // Not by the number of batches: those in flight may be completed together, and then many come without a wait.
            self.waited_for = false;
            self.trials.interrupt();
        }
        if self.waited_for {
            self.trials.batch(submitted, self.core_rate * self.cores as f64, now);
        }
        before != (self.gpu_helps(), self.cpu_helps())
    }

    /// The consumer got a batch for which it had waited.
    pub fn handed_over(&mut self, now: f64) {
        // The wait for the first batch of all says nothing of later ones.
        if self.waited_until > 0.0 {
            self.longest_wait = (now - self.asked).max(Self::FADES * self.longest_wait);
        }
        self.waited_until = now;
        self.partition.handed_over(now);
    }

    /// A chunk of `bytes` decoded bytes that both could decode was submitted.
    pub fn submitted(&mut self, bytes: u64) {
        self.submitted_bytes += bytes;
    }

    /// A core begins to work on a chunk.
    pub fn cpu_begins(&mut self, now: f64) {
        if self.busy == 0 {
            self.window = Window { since: now, bytes: 0 };
        }
        self.busy += 1;
    }

    /// A core has decoded a chunk of `bytes` decoded bytes in `seconds`.
    pub fn cpu_ends(&mut self, bytes: u64, seconds: f64, now: f64) {
        self.chunks += 1;
        // Each core's first chunk takes several times as long as later ones: the core's memory is mapped then.
        let seconds = if self.chunks > self.cores { seconds } else { seconds / Self::FIRST };
        let rate = bytes as f64 / seconds.max(1e-9);
        let weight = Self::CORE_WEIGHT.max(1.0 / self.chunks as f64);
        self.core_rate += weight * (rate - self.core_rate);
        self.chunk_bytes += weight * (bytes as f64 - self.chunk_bytes);
        self.core_ended = now;
        self.trials.done(bytes);
        self.busy = self.busy.saturating_sub(1);
        self.window.bytes += bytes;
        self.measure(now);
    }

    /// A core is done with a job that has decoded no chunk.
    pub fn cpu_gives_up(&mut self) {
        self.busy = self.busy.saturating_sub(1);
    }

    /// The GPU has decoded chunks of `bytes` decoded bytes, of which the first arrived `latency` seconds ago.
    pub fn gpu_ends(&mut self, bytes: u64, latency: f64) {
        self.trials.done(bytes);
        self.gpu_latency = Self::mean(self.gpu_latency, latency);
    }

    /// Whether the GPU should decode its next chunks on the SM partition, where it is slower and takes less from the model.
    pub fn keeps_to_sm_partition(&mut self, ready: u64, submitted: u64) -> bool {
        let keeps = self.partition.is_allowed()
            && !self.waited_for
            && self.served
            && ready >= submitted / Self::IN_STORE;
        if keeps {
            self.partition.note_use();
        }
        keeps
    }

    /// Whether the GPU may take chunks that the CPU could decode.
    pub fn gpu_helps(&self) -> bool {
        match self.waited_for {
            true => self.trials.side() != Side::Cpu,
            false => self.helping || !self.cores_are_of_use(),
        }
    }

    /// Whether the CPU may take chunks that the GPU could decode.
    pub fn cpu_helps(&self) -> bool {
        match self.trials.side() {
            _ if !self.waited_for => self.cores_are_of_use(),
            Side::Cpu => true,
            Side::Both => self.cores_are_of_use(),
            Side::Gpu => false,
        }
    }

    /// Bytes that the CPU decodes while the GPU decodes one chunk: chunks of as many bytes are left to the CPU.
    pub fn reserve_bytes(&mut self, now: f64) -> u64 {
        self.measure(now);
        if self.cpu_helps() { (self.cpu_rate * self.gpu_latency) as u64 } else { 0 }
    }

    /// The next chunk of the backlog for a core.
    pub fn next_for_cpu<T>(&self, backlog: &mut Backlog<T>) -> Option<T> {
        if self.cpu_helps() { backlog.for_cpu() } else { None }
    }

    /// The next chunk of the backlog for the GPU.
    pub fn next_for_gpu<T>(&mut self, backlog: &mut Backlog<T>, now: f64) -> Option<T> {
        if self.gpu_helps() { backlog.for_gpu(self.reserve_bytes(now)) } else { None }
    }

    /// Seconds that a core needs for a chunk, 0 if that is not known. By its mean rate and not by the mean of its seconds: a core that was taken away
    /// for seconds while it had a chunk would be believed to be slow long after.
    fn core_seconds(&self) -> f64 {
        if self.core_rate == 0.0 { 0.0 } else { self.chunk_bytes / self.core_rate }
    }

    /// Whether a core that begins with a chunk ends before its batch is wanted.
    fn cores_are_in_time(&self) -> bool {
        self.interval == 0.0 || self.core_seconds() <= Self::IN_TIME * self.interval * self.in_flight as f64
    }

    /// Whether cores get chunks that the GPU can decode: they are in time, and can decode a good part of what is taken.
    fn cores_are_of_use(&self) -> bool {
        let all = self.core_rate * self.cores as f64;
        let are_slow = all > 0.0 && all * self.interval < Self::LEAST_SHARE * self.bytes_per_batch;
        self.cores_are_in_time() && !are_slow
    }

    /// Who decodes and why, in words.
    pub fn explanation(&self) -> String {
        let in_time = self.cores_are_in_time();
        let who = match (self.gpu_helps(), self.cpu_helps()) {
            (true, false) if !in_time => {
                "the GPU decodes, because a core takes longer for a chunk than a batch is in flight"
            }
            (true, false) if !self.cores_are_of_use() => {
                let all = self.core_rate * self.cores as f64;
                let taken = self.bytes_per_batch / self.interval;
                &format!(
                    "the GPU decodes, because cores could do {:.1} of {:.1} GB/s",
                    all / 1e9,
                    taken / 1e9
                )
            }
            (false, _) if !self.waited_for => {
                "the CPU decodes, because enough submitted batches are complete"
            }
            (true, true) if !self.waited_for => {
                "CPU and GPU decode, because few submitted batches are complete"
            }
            (true, false) => "the GPU decodes, because DALI waits for batches",
            (true, true) => "CPU and GPU decode, because DALI waits for batches",
            (false, _) => "the CPU decodes, because DALI waits for batches",
        };
        format!("{who}; {}{}", self.taken_in_words(), self.trials.in_words())
    }

    /// At which rate batches are taken, in words.
    pub fn taken_in_words(&self) -> String {
        match self.interval > 0.0 {
            true => format!("{:.1} batches are taken in a second", 1.0 / self.interval),
            false => "no batches were taken yet".into(),
        }
    }

    fn measure(&mut self, now: f64) {
        let seconds = now - self.window.since;
        // Where no core has anything to do, nothing can be learnt.
        if seconds < Self::WINDOW || (self.busy == 0 && self.window.bytes == 0) {
            return;
        }
        self.cpu_rate = Self::mean(self.cpu_rate, self.window.bytes as f64 / seconds);
        self.window = Window { since: now, bytes: 0 };
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
        let mut policy = Policy::default();
        policy.gpu_ends(1, 0.1);
        (0..8).for_each(|_| policy.cpu_begins(0.0));
        policy.cpu_ends(1 << 30, 0.1, 0.1);
        assert!(policy.reserve_bytes(0.1) > 1 << 29);
        // Seven of them are at work still, and nothing comes.
        for step in 1..40 {
            policy.reserve_bytes(0.1 + f64::from(step) * 0.1);
        }
        assert!(policy.reserve_bytes(5.0) < 1 << 20);
    }

    #[test]
    fn the_policy_says_who_decodes_and_why() {
        let mut policy = Policy::new(4);
        assert!(policy.explanation().ends_with("no batches were taken yet"));
        policy.fill(4, 4);
        (1..9).for_each(|call| _ = policy.wanted(false, 4, 4, 0.1 * f64::from(call)));
        let enough = "the CPU decodes, because enough submitted batches are complete; 10.0 batches are taken in a second";
        assert_eq!(policy.explanation(), enough);
        for call in 9..60 {
            policy.trials.done(100_000_000);
            policy.wanted(true, 0, 4, 0.1 * f64::from(call));
        }
        let waits =
            "decodes, because DALI waits for batches; 10.0 batches are taken in a second; GB/s: GPU 1.0";
        assert!(policy.explanation().contains(waits), "{}", policy.explanation());
    }

    #[test]
    fn batches_that_are_completed_together_are_no_sign_of_a_slow_consumer() {
        const IN_FLIGHT: u64 = 8;
        let (mut policy, mut now) = (Policy::new(4), 1.0);
        let mut waited = |policy: &mut Policy, seconds: f64, served: u64, ready: u64| {
            policy.wanted(true, 0, IN_FLIGHT, now);
            now += seconds;
            policy.handed_over(now);
            for _ in 0..served {
                now += 1e-3;
                policy.wanted(false, ready, IN_FLIGHT, now);
            }
            policy.waited_for
        };
        // Of the reader's beginning nothing follows.
        assert!(!waited(&mut policy, 1.0, 1, IN_FLIGHT));
        for served in [1, 4, 7, 15] {
            assert!(waited(&mut policy, 0.01, served, IN_FLIGHT - 1), "{served} without a wait");
            // A short wait makes none of the long ones forgotten.
            assert!(waited(&mut policy, 1e-4, served, IN_FLIGHT - 1), "{served} without a wait");
        }
        assert!(waited(&mut policy, 0.01, 200, IN_FLIGHT / 2), "half of the batches are missing");
        assert!(!waited(&mut policy, 0.01, 100, IN_FLIGHT));
    }

    #[test]
    fn cores_that_could_do_little_of_what_is_taken_get_nothing_until_they_are_asked_again() {
        let (chunk, step) = (10_000_000, 0.03);
        for (core_rate, of_use) in [(50e6, false), (100e6, false), (200e6, true)] {
            let mut policy = Policy::new(4);
            let core_seconds = chunk as f64 / core_rate;
            (0..100).for_each(|_| policy.cpu_ends(chunk, core_seconds, 0.0));
            let mut now = 0.0;
            let mut takes = |policy: &mut Policy, seconds: f64| {
                let until = now + seconds;
                let mut helped = 0.0;
                while now < until {
                    (0..10).for_each(|_| policy.submitted(chunk));
                    policy.wanted(false, 8, 8, now);
                    helped += if policy.cpu_helps() { step } else { 0.0 };
                    if policy.cpu_helps() {
                        policy.cpu_ends(chunk, core_seconds, now);
                    }
                    assert!(policy.cpu_helps() || policy.gpu_helps());
                    now += step;
                }
                helped / seconds
            };
            let helped = takes(&mut policy, Policy::FORGETS * core_seconds / 2.0);
            assert_eq!(helped > 0.9, of_use, "{core_rate}: {helped}");
            let helped = takes(&mut policy, 10.0 * Policy::FORGETS * core_seconds);
            assert!(helped > 0.0 && (helped < 0.1 || of_use), "{core_rate}: {helped}");
        }
    }

    #[test]
    fn a_pause_of_the_consumer_makes_slow_cores_no_faster() {
        let mut policy = Policy::new(4);
        policy.cpu_ends(1000, 8.0, 0.5);
        for call in 1..200 {
            policy.core_ended = f64::from(call) * 0.01;
            policy.wanted(false, 8, 8, f64::from(call) * 0.01);
        }
        assert!(!policy.cores_are_in_time());
        policy.core_ended = 60.0;
        policy.wanted(false, 8, 8, 60.0);
        assert!(!policy.cores_are_in_time());
        // Steps that take longer from now on are no pauses.
        for call in 1..100 {
            policy.core_ended = 60.0 + f64::from(call);
            policy.wanted(false, 8, 8, 60.0 + f64::from(call));
        }
        assert!(policy.cores_are_in_time());
    }

    #[test]
    fn a_pause_of_the_consumer_does_not_decide_who_decodes() {
        const IN_FLIGHT: u64 = 4;
        let rates = [10e3, 8e3, 4.5e3];
        for pause in 0..200 {
            let mut policy = Policy { core_rate: rates[2] / 16.0, ..Policy::new(16) };
            let (mut now, mut by_gpu) = (0.0, 0);
            for batch in 0..500 {
                if batch == pause {
                    now += 60.0;
                    // What was completed meanwhile.
                    for ready in (1..=IN_FLIGHT).rev() {
                        policy.trials.done(1000);
                        policy.wanted(false, ready, IN_FLIGHT, now);
                    }
                }
                policy.wanted(true, 0, IN_FLIGHT, now);
                let side = policy.trials.side();
                now += 1000.0 / rates[side as usize];
                policy.trials.done(1000);
                policy.handed_over(now);
                by_gpu += u64::from(batch >= 300 && side == Side::Gpu);
            }
            assert!(by_gpu > 190, "pause at {pause}: {by_gpu}");
        }
    }
}
