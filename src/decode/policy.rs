//! Who decodes the next chunk, where both the CPU and the GPU could.
//!
//! Every GB/s that the GPU decodes is taken from the model that trains on it, and cores that idle cost nothing. So there are
//! three situations, told apart by the queue of complete batches:
//!
//! - Most of what was submitted is complete: the CPU decodes, the GPU does not.
//! - Little is: the GPU helps until most is. A chunk takes as long on the GPU as hundreds of them do, which is far longer than on a
//!   core. So the CPU keeps the chunks that are needed first, as many as it decodes in the time that the GPU takes for
//!   one, and the GPU takes those behind them.
//! - The consumer waits for every batch: what counts is what gets done. Whether that is most with the GPU, the CPU or both depends on
//!   codec, chunks and machine, and both together can be slower than one of them, because they share the host's cores and
//!   memory. So each is tried for a while, and the best is kept. Cores that could not do a good part of what the GPU
//!   does, by the time that they need for a chunk, are not tried.
//!
//! What the GPU decodes while the consumer does not wait costs the model less on a few multiprocessors than on all, which take
//! turns with it. Whether these are enough is tried.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Decides by what it is told. Times are in seconds from any origin.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    helping: bool,
    /// Batches that were there when the consumer wanted them, since it had to wait last.
    served: u64,
    few: Few,
    /// Whether it waits all the time, and what is done then.
    waited_for: bool,
    trials: Trials,
    /// Decoded bytes that the CPU gets done in a second.
    cpu_rate: f64,
    /// Seconds from a chunk's arrival on the GPU to its elements in the outputs.
    gpu_latency: f64,
    /// Bytes in a second of one core.
    core_rate: f64,
    /// Jobs that cores work on, and how many cores there are.
    busy: u64,
    cores: u64,
    window: Window,
}

/// What the CPU has done since.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: f64,
    bytes: u64,
}

/// Who decodes while the consumer waits all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Side {
    #[default]
    Gpu,
    Both,
    Cpu,
}

/// How much each of them gets done, as far as it was tried.
#[derive(Clone, Debug, Default)]
struct Trials {
    side: Side,
    /// Decoded bytes in a second, in the order of the sides.
    rates: [Option<f64>; 3],
    /// Of the present trial: since when, and batches and bytes since. It begins when the batches of the last one are through.
    since: Option<f64>,
    batches: u64,
    bytes: u64,
    /// When it was begun with, and bytes since.
    begun: f64,
    all_bytes: u64,
}

/// Whether few multiprocessors are enough. That the consumer waits at times says little, since it waits ahead of its own
/// consumer, and with all of them too. So batches are timed with few, from one wait to another, and at least as many with all.
#[derive(Clone, Copy, Debug)]
struct Few {
    allowed: bool,
    /// So many batches are not looked at.
    settled: u64,
    /// So many times as many as were timed will not be, where few were slower.
    term: u64,
    /// Of the batches that are timed: since when, how many, and whether chunks were decoded on few.
    since: Option<f64>,
    batches: u64,
    used: bool,
    /// When the consumer got its last batch.
    last: f64,
    /// Batches that were timed with few, and seconds of each.
    timed: u64,
    pace: f64,
}

impl Default for Few {
    fn default() -> Self {
        Self {
            allowed: true,
            // The first ones wait for a reader that has just begun.
            settled: Self::LEAST.0,
            term: Self::TERM,
            since: None,
            batches: 0,
            used: false,
            last: 0.0,
            timed: 0,
            pace: 0.0,
        }
    }
}

impl Few {
    /// So many batches and seconds at least are timed.
    const LEAST: (u64, f64) = (32, 1.0);
    /// A result holds for so many times the batches that were timed, one against few so many times as long each time, but not
    /// longer than the last.
    const TERM: u64 = 32;
    const LONGER: u64 = 4;
    const LONGEST: u64 = 512;
    /// More seconds than this for a batch are too many, with those of all multiprocessors as 1.
    const AS_GOOD: f64 = 1.005;
    /// A consumer that takes no batch for so many seconds, and for so many times as long as for the others, does something else.
    const PAUSE: (f64, f64) = (1.0, 8.0);

    /// The consumer wants a batch, of which so many are in flight.
    fn wanted(&mut self, waits: bool, in_flight: u64, now: f64) {
        let gap = now - self.last;
        self.last = now;
        self.batches += 1;
        if self.settled > 0 {
            self.settled -= 1;
            if self.settled == 0 {
                self.allowed = true;
                self.restart(None);
            }
            return;
        }
        let Some(since) = self.since else {
            // What was in store is gone, or is there again.
            let begins = if self.allowed { waits } else { self.batches >= 2 * in_flight };
            if begins {
                self.restart(Some(now));
            }
            return;
        };
        let seconds = now - since;
        let others = (seconds - gap) / (self.batches - 1).max(1) as f64;
        if gap > Self::PAUSE.0.max(Self::PAUSE.1 * others) {
            return self.restart(None);
        }
        let (least, least_seconds) = Self::LEAST;
        if self.batches < least || seconds < least_seconds {
            return;
        }
        let pace = seconds / self.batches as f64;
        if self.allowed {
            if waits && self.used {
                (self.pace, self.timed, self.allowed) = (pace, self.batches, false);
                self.restart(None);
            } else if waits {
                self.restart(Some(now));
            }
        } else if self.batches >= self.timed {
            self.allowed = self.pace <= pace * Self::AS_GOOD;
            let term = if self.allowed { Self::TERM } else { self.term };
            self.settled = term * self.batches;
            self.term = if self.allowed { Self::TERM } else { (Self::LONGER * term).min(Self::LONGEST) };
            self.restart(None);
        }
    }

    fn restart(&mut self, since: Option<f64>) {
        (self.since, self.batches, self.used) = (since, 0, false);
    }
}

impl Trials {
    /// A trial is as long as the batches in flight, but of so many batches and seconds at least.
    const LEAST: (u64, f64) = (8, 0.05);
    /// A side that does this much of the best does as well. Then the one is taken that leaves more of the GPU to others.
    const AS_GOOD: f64 = 0.97;
    /// Cores that could do this much of what the GPU does are worth a trial.
    const WORTH_IT: f64 = 0.4;
    /// A trial that is this much slower than the best one is given up soon.
    const PATIENCE: f64 = 2.0;
    /// When the rate has changed by this factor, the others' rates are of no use any more.
    const CHANGED: f64 = 1.5;

    /// So many bytes were decoded.
    fn done(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.all_bytes += bytes;
    }

    /// The consumer got a batch for which it had waited. The cores together could do so many bytes in a second.
    fn batch(&mut self, in_flight: u64, cores_rate: f64, now: f64) {
        self.batches += 1;
        if self.begun > now {
            (self.begun, self.all_bytes) = (now, 0);
        }
        let best = self.rates.iter().flatten().fold(0.0, |best: f64, &rate| best.max(rate));
        let rate = self.all_bytes as f64 / (now - self.begun);
        if self.rates[self.side as usize].is_none()
            && self.batches >= in_flight / 2
            && rate * Self::PATIENCE < best
        {
            return self.ends(rate, cores_rate, now);
        }
        let Some(since) = self.since else {
            if self.batches >= in_flight {
                (self.since, self.batches, self.bytes) = (Some(now), 0, 0);
            }
            return;
        };
        let seconds = now - since;
        if self.batches < in_flight.max(Self::LEAST.0) || seconds < Self::LEAST.1 {
            return;
        }
        self.ends(self.bytes as f64 / seconds, cores_rate, now);
    }

    /// The side of now gets so many bytes done in a second.
    fn ends(&mut self, rate: f64, cores_rate: f64, now: f64) {
        (self.since, self.batches, self.bytes) = (Some(now), 0, 0);
        let own = self.side as usize;
        if self.rates.iter().all(Option::is_some)
            && let Some(before) = self.rates[own]
            && (rate > before * Self::CHANGED || rate * Self::CHANGED < before)
        {
            self.rates = [None; 3];
        }
        self.rates[own] = Some(rate);
        if self.side == Side::Gpu && cores_rate < rate * Self::WORTH_IT {
            for other in [Side::Both, Side::Cpu] {
                self.rates[other as usize].get_or_insert(cores_rate.min(rate * Self::WORTH_IT));
            }
        }
        let next = self.next();
        if next != self.side {
            (self.side, self.since, self.begun, self.all_bytes) = (next, None, now, 0);
        }
    }

    /// The consumer does not wait any more, so that nothing can be measured.
    fn interrupt(&mut self) {
        (self.since, self.batches, self.begun) = (None, 0, f64::INFINITY);
    }

    fn next(&self) -> Side {
        const SIDES: [Side; 3] = [Side::Gpu, Side::Both, Side::Cpu];
        if let Some(untried) = SIDES.into_iter().find(|&side| self.rates[side as usize].is_none()) {
            return untried;
        }
        let best = self.rates.iter().flatten().fold(0.0, |best: f64, &rate| best.max(rate));
        let as_good =
            |side: &Side| self.rates[*side as usize].is_some_and(|rate| rate >= best * Self::AS_GOOD);
        SIDES.into_iter().rev().find(as_good).unwrap_or_default()
    }
}

impl Policy {
    /// For so many cores.
    pub fn new(cores: u64) -> Self {
        Self { cores, ..Self::default() }
    }

    /// The GPU begins to help when fewer than this share of the submitted batches are complete,
    const LOW: (u64, u64) = (1, 4);
    /// and goes on until this share is.
    const HIGH: (u64, u64) = (3, 4);
    /// The GPU takes its time while at least this share of the submitted batches is complete. A handful of batches says nothing.
    const IN_STORE: u64 = 8;
    /// Rates are measured over windows of so many seconds,
    const WINDOW: f64 = 0.05;
    /// and a new figure counts for so much.
    const WEIGHT: f64 = 0.3;

    /// So many of the submitted batches are complete.
    pub fn fill(&mut self, ready: u64, submitted: u64) {
        if ready * Self::LOW.1 < submitted * Self::LOW.0 {
            self.helping = true;
        }
        if Self::is_full(ready, submitted) {
            self.helping = false;
        }
    }

    fn is_full(ready: u64, submitted: u64) -> bool {
        ready * Self::HIGH.1 >= submitted * Self::HIGH.0
    }

    /// The consumer wants the next batch of so many that were submitted, `ready` of which are complete, and has to wait for it or
    /// not. Whether that changes who decodes.
    pub fn wanted(&mut self, waits: bool, ready: u64, submitted: u64, now: f64) -> bool {
        let before = (self.gpu_helps(), self.cpu_helps());
        self.helping |= waits;
        self.few.wanted(waits, submitted, now);
        self.served = if waits { 0 } else { self.served + 1 };
        if waits {
            self.waited_for = true;
        } else if self.served >= 2 * submitted
            || (self.served * Self::HIGH.1 > submitted * (Self::HIGH.1 - Self::HIGH.0)
                && Self::is_full(ready, submitted))
        {
            // As many as are in flight may have been completed at once, so that some that were there say nothing yet. But of
            // these less than three quarters are left once it took more than a quarter: if there are more, others were
            // completed meanwhile, and the consumer is likely to be the slower one.
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
        self.few.last = now;
    }

    /// A core begins to work on a chunk.
    pub fn cpu_begins(&mut self, now: f64) {
        if self.busy == 0 {
            self.window = Window { since: now, bytes: 0 };
        }
        self.busy += 1;
    }

    /// A core is done with a chunk of so many decoded bytes, for which it took so many seconds.
    pub fn cpu_ends(&mut self, bytes: u64, seconds: f64, now: f64) {
        self.core_rate = Self::mean(self.core_rate, bytes as f64 / seconds.max(1e-9));
        self.trials.done(bytes);
        self.busy = self.busy.saturating_sub(1);
        self.window.bytes += bytes;
        self.measure(now);
    }

    /// A core is done with a chunk of which there was nothing to decode.
    pub fn cpu_gives_up(&mut self) {
        self.busy = self.busy.saturating_sub(1);
    }

    /// The GPU is done with chunks of so many decoded bytes, of which the first arrived so many seconds ago.
    pub fn gpu_ends(&mut self, bytes: u64, latency: f64) {
        self.trials.done(bytes);
        self.gpu_latency = Self::mean(self.gpu_latency, latency);
    }

    /// How long chunks may wait for others to go to the GPU with them: what interrupts the model is each group, however small
    /// it is.
    pub const PATIENCE: f64 = 0.01;

    /// Whether they may, because the consumer has enough in store.
    pub fn has_time(&self, ready: u64, submitted: u64) -> bool {
        !self.waited_for && ready >= 2 && 2 * ready >= submitted
    }

    /// Whether the GPU should keep to few multiprocessors with its next chunks, which it decodes or only gathers: it is slower
    /// there, and takes less from the model.
    pub fn keeps_to_few(&mut self, decodes: bool, ready: u64, submitted: u64) -> bool {
        let few =
            self.few.allowed && !self.waited_for && self.served > 0 && ready >= submitted / Self::IN_STORE;
        self.few.used |= few && decodes;
        few
    }

    /// Whether the GPU may take chunks that the CPU could decode.
    pub fn gpu_helps(&self) -> bool {
        if self.waited_for { self.trials.side != Side::Cpu } else { self.helping }
    }

    /// Whether the CPU may take chunks that the GPU could decode.
    pub fn cpu_helps(&self) -> bool {
        !self.waited_for || self.trials.side != Side::Gpu
    }

    /// Decoded bytes that the CPU has done before the GPU would be, which are better left to it.
    pub fn reserve_bytes(&mut self, now: f64) -> u64 {
        self.measure(now);
        if self.cpu_helps() { (self.cpu_rate * self.gpu_latency) as u64 } else { 0 }
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

/// Chunks that both sides could decode, in the order in which they are needed.
#[derive(Debug)]
pub struct Backlog<T> {
    /// What the CPU keeps.
    near: VecDeque<(T, u64)>,
    far: VecDeque<(T, u64)>,
    near_bytes: u64,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self { near: VecDeque::new(), far: VecDeque::new(), near_bytes: 0 }
    }
}

impl<T> Backlog<T> {
    /// Adds a chunk of so many decoded bytes behind all others.
    pub fn push(&mut self, item: T, bytes: u64) {
        self.far.push_back((item, bytes));
    }

    /// The next chunk for the CPU, if it may take one.
    pub fn for_cpu(&mut self, policy: &Policy) -> Option<T> {
        if !policy.cpu_helps() {
            return None;
        }
        let near = self.near.pop_front().inspect(|(_, bytes)| self.near_bytes -= bytes);
        near.or_else(|| self.far.pop_front()).map(|(item, _)| item)
    }

    /// The next chunk for the GPU, if it may take one. `alone`: there is nobody else.
    pub fn for_gpu(&mut self, policy: &mut Policy, now: f64, alone: bool) -> Option<T> {
        if !alone && !policy.gpu_helps() {
            return None;
        }
        let reserve = if alone { 0 } else { policy.reserve_bytes(now) };
        while let Some(&(_, bytes)) = self.near.back()
            && self.near_bytes - bytes >= reserve
        {
            self.near_bytes -= bytes;
            let back = self.near.pop_back();
            back.into_iter().for_each(|job| self.far.push_front(job));
        }
        while self.near_bytes < reserve
            && let Some((item, bytes)) = self.far.pop_front()
        {
            self.near_bytes += bytes;
            self.near.push_back((item, bytes));
        }
        self.far.pop_front().map(|(item, _)| item)
    }

    /// Whether there is nothing for anybody.
    pub fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty()
    }

    /// Removes everything.
    pub fn take(self) -> impl Iterator<Item = T> {
        self.near.into_iter().chain(self.far).map(|(item, _)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader, cores and a GPU in simulated time, and what they did.
    #[derive(Clone, Copy)]
    struct Machine {
        /// Batches in flight and chunks of each. Uneven: one of four needs half of all chunks, which the others share.
        depth: u64,
        chunks: u64,
        uneven: bool,
        cores: u64,
        /// Seconds of a core for a chunk.
        core_seconds: f64,
        /// Seconds of the GPU for any number of chunks.
        gpu_seconds: f64,
        /// Seconds between two batches that the consumer takes, if they are there.
        period: f64,
        /// Seconds by which each chunk that the GPU decodes delays the consumer, whose GPU it is.
        stolen: f64,
        /// A few multiprocessors, if it can be cut.
        few: Option<FewOfThem>,
        batches: u64,
    }

    #[derive(Clone, Copy)]
    struct FewOfThem {
        /// Seconds for each chunk, one after the other, besides those that any number takes.
        seconds: f64,
        /// By which each delays the consumer.
        stolen: f64,
    }

    #[derive(Debug)]
    struct Outcome {
        seconds: f64,
        waited: f64,
        /// Shares of the chunks.
        by_gpu: f64,
        by_few: f64,
    }

    impl Machine {
        fn run(self, gpu: bool, cpu: bool) -> Outcome {
            const BYTES: u64 = 1000;
            const TICK: f64 = 2e-4;
            let (mut policy, alone) = (Policy::new(self.cores), Policy::default());
            let mut backlog = Backlog::default();
            let mut missing: VecDeque<u64> = VecDeque::new();
            let (mut planned, mut taken, mut by_gpu, mut by_few, mut waited) = (0u64, 0u64, 0u64, 0u64, 0.0);
            let mut cores: Vec<Option<(u64, f64)>> = vec![None; if cpu { self.cores as usize } else { 0 }];
            // Groups on the GPU: what is in them, when it arrived and when it is done. A lane takes all that waits.
            let mut lanes: Vec<(Vec<(u64, f64)>, f64)> = vec![(vec![], 0.0); 4];
            let mut waiting: Vec<(u64, f64)> = vec![];
            let (mut now, mut next_take, mut waits, mut has_time) = (0.0, 0.0, false, false);
            // What each chunk of a lane's group steals, if it is on few multiprocessors.
            let (mut on_few, mut few_until) = (vec![None; lanes.len()], 0.0f64);
            let mut fill = (0, 0);
            while taken < self.batches {
                now += TICK;
                while planned < (taken + self.depth).min(self.batches) {
                    let chunks = match (self.uneven, planned % 4) {
                        (false, _) => self.chunks,
                        (true, 0) => 2 * self.chunks,
                        (true, _) => self.chunks * 2 / 3,
                    };
                    (0..chunks).for_each(|_| backlog.push(planned, BYTES));
                    missing.push_back(chunks);
                    planned += 1;
                }
                let mut finish = |batch: u64, taken: u64| missing[(batch - taken) as usize] -= 1;
                for core in &mut cores {
                    if let Some((batch, end)) = *core
                        && end <= now
                    {
                        finish(batch, taken);
                        policy.cpu_ends(BYTES, self.core_seconds, now);
                        *core = None;
                    }
                    if core.is_none()
                        && let Some(batch) = backlog.for_cpu(if gpu { &policy } else { &alone })
                    {
                        policy.cpu_begins(now);
                        *core = Some((batch, now + self.core_seconds));
                    }
                }
                if gpu {
                    while waiting.len() < 1000
                        && let Some(batch) = backlog.for_gpu(&mut policy, now, !cpu)
                    {
                        waiting.push((batch, now));
                        by_gpu += 1;
                    }
                    for ((group, end), on_few) in lanes.iter_mut().zip(&mut on_few) {
                        if *end <= now {
                            next_take += on_few.take().unwrap_or(self.stolen) * group.len() as f64;
                            for (batch, arrived) in group.drain(..) {
                                finish(batch, taken);
                                policy.gpu_ends(BYTES, now - arrived);
                            }
                            let arrived = waiting.first().map(|first| first.1);
                            let patience = if has_time { Policy::PATIENCE } else { 0.0 };
                            if arrived.is_some_and(|arrived| now - arrived >= patience) {
                                // As many as a lane has memory for.
                                let rest = waiting.split_off(waiting.len().min(100));
                                *group = std::mem::replace(&mut waiting, rest);
                                *end = now + self.gpu_seconds;
                                if let Some(few) = self.few
                                    && policy.keeps_to_few(true, fill.0, fill.1)
                                {
                                    by_few += group.len() as u64;
                                    few_until = few_until.max(now) + few.seconds * group.len() as f64;
                                    (*end, *on_few) = (few_until + self.gpu_seconds, Some(few.stolen));
                                }
                            }
                        }
                    }
                }
                let ready = missing.iter().filter(|&&missing| missing == 0).count() as u64;
                has_time = policy.has_time(ready, missing.len() as u64);
                fill = (ready, missing.len() as u64);
                let wants = now >= next_take;
                policy.fill(ready, missing.len() as u64);
                if wants && !waits {
                    waits = missing[0] > 0;
                    policy.wanted(waits, ready, missing.len() as u64, now);
                }
                if wants && missing[0] == 0 {
                    missing.pop_front();
                    taken += 1;
                    next_take = now + self.period;
                    if std::mem::take(&mut waits) {
                        policy.handed_over(now);
                    }
                } else if wants {
                    waited += TICK;
                }
                assert!(now < 1000.0, "nothing moves any more");
            }
            let all = (self.batches * self.chunks) as f64;
            Outcome { seconds: now, waited, by_gpu: by_gpu as f64 / all, by_few: by_few as f64 / all }
        }
    }

    const MACHINE: Machine = Machine {
        depth: 16,
        chunks: 48,
        uneven: false,
        cores: 16,
        core_seconds: 0.007,
        gpu_seconds: 0.025,
        period: 0.0,
        stolen: 0.0,
        few: None,
        batches: 150,
    };

    #[test]
    fn idle_cores_that_suffice_leave_the_gpu_to_the_model() {
        // 16 cores do a batch in 21 ms.
        for period in [0.03, 0.125] {
            let outcome = Machine { period, batches: 600, ..MACHINE }.run(true, true);
            // The GPU helps in the beginning only.
            assert!(outcome.by_gpu < 0.036 && outcome.waited < 0.15, "{outcome:?}");
        }
    }

    #[test]
    fn the_gpu_does_what_few_cores_cannot_finish_in_time() {
        // Two cores do a batch in 168 ms, 71 % of what is needed in 120 ms.
        let outcome = Machine { cores: 2, period: 0.12, batches: 400, ..MACHINE }.run(true, true);
        assert!(outcome.waited < 0.1, "{outcome:?}");
        assert!((0.2..0.45).contains(&outcome.by_gpu), "{outcome:?}");
    }

    #[test]
    fn a_consumer_that_waits_gets_at_least_what_the_better_side_alone_would_do() {
        for (core_seconds, gpu_seconds) in
            [(0.007, 0.025), (0.02, 0.5), (0.05, 0.02), (0.004, 0.3), (0.03, 0.025)]
        {
            let machine = Machine { core_seconds, gpu_seconds, batches: 2400, ..MACHINE };
            let (gpu, cpu) = (machine.run(true, false), machine.run(false, true));
            let both = machine.run(true, true);
            let better = gpu.seconds.min(cpu.seconds);
            assert!(both.seconds < better * 1.1, "{both:?} beside {gpu:?} and {cpu:?}");
        }
    }

    #[test]
    fn a_training_that_lends_its_gpu_is_as_fast_as_with_the_better_side_alone() {
        const BATCHES: u64 = 400;
        const PERIOD: f64 = 0.125;
        // Rates of one core and of the GPU as measured beside each other, for batches of 16 windows of two steps.
        for (store, chunks, core_seconds, gpu_seconds, stolen) in [
            ("zstd", 102, 7e-3, 25e-3, 91e-6),
            ("sharded", 816, 1.1e-3, 10e-3, 10e-6),
            ("blosc-lz4", 17, 8.3e-3, 6e-3, 240e-6),
            ("blosc-zstd", 17, 15e-3, 10e-3, 280e-6),
        ] {
            for cores in [1, 2, 3, 4, 6, 8, 16] {
                let machine = Machine {
                    chunks,
                    cores,
                    core_seconds,
                    gpu_seconds,
                    stolen,
                    period: PERIOD,
                    batches: BATCHES,
                    ..MACHINE
                };
                let (gpu, cpu) = (machine.run(true, false), machine.run(false, true));
                let both = machine.run(true, true);
                let better = gpu.seconds.min(cpu.seconds);
                let about = format!("{store}, {cores} cores: {both:?} beside {gpu:?} and {cpu:?}");
                assert!(both.seconds < better * 1.01, "{about}");
                // Cores that do half of the work give the training back half of what it lent.
                let alone = BATCHES as f64 * PERIOD;
                if cpu.seconds < 2.0 * alone && cpu.seconds > 1.05 * alone {
                    assert!(both.seconds - alone < 0.7 * (gpu.seconds - alone), "{about}");
                }
            }
        }
    }

    #[test]
    fn the_gpu_takes_its_time_where_that_is_enough_for_the_consumer() {
        const PERIOD: f64 = 0.125;
        let (batches, stolen, few) = (600, 90e-6, 45e-6);
        for depth in [2, 4, 16] {
            for (cores, cpu) in [(4, true), (4, false)] {
                let all = Machine { depth, chunks: 102, cores, period: PERIOD, batches, stolen, ..MACHINE };
                let wide = all.run(true, cpu);
                // Half as long as the training needs for a batch.
                let enough = FewOfThem { seconds: PERIOD / 2.0 / 102.0, stolen: few };
                let spared = Machine { few: Some(enough), ..all }.run(true, cpu);
                let about = format!("{depth} in flight, CPU {cpu}: {spared:?} beside {wide:?}");
                assert!(spared.waited < wide.waited + 0.3, "{about}");
                assert!(spared.by_few > 0.8 * spared.by_gpu, "{about}");
                let alone = batches as f64 * PERIOD;
                assert!(spared.seconds - alone < 0.7 * (wide.seconds - alone), "{about}");
            }
        }
    }

    #[test]
    fn the_gpu_does_not_take_its_time_where_the_consumer_would_wait() {
        const PERIOD: f64 = 0.125;
        for (depth, cpu, uneven) in [(2, false), (4, false), (4, true), (16, false), (16, true)]
            .into_iter()
            .flat_map(|(depth, cpu)| [(depth, cpu, false), (depth, cpu, true)])
        {
            let batches = 6000;
            let (cores, period, stolen) = (4, PERIOD, 90e-6);
            let all = Machine { depth, chunks: 102, uneven, cores, period, batches, stolen, ..MACHINE };
            let wide = all.run(true, cpu);
            for times in [1.2, 1.5, 2.0] {
                let few = FewOfThem { seconds: times * PERIOD / 102.0, stolen: 45e-6 };
                let slow = Machine { few: Some(few), ..all }.run(true, cpu);
                let about = format!("{depth} in flight, {times} times too slow, CPU {cpu}, uneven {uneven}");
                assert!(slow.by_few > 0.0, "{about}");
                assert!(slow.seconds < wide.seconds * 1.02, "{about}: {slow:?} beside {wide:?}");
            }
        }
    }

    /// Of so many batches the share for which few were allowed, if each takes so many seconds with few, and 0.1 with all.
    /// Every fifth is waited for, and there is a pause before one.
    fn allowed(few: &mut Few, seconds: f64, batches: u64, pause: Option<u64>) -> f64 {
        let mut allowed = 0;
        for batch in 0..batches {
            let pause = if pause == Some(batch) { 60.0 } else { 0.0 };
            let now = few.last + pause + if few.allowed { seconds } else { 0.1 };
            few.used |= few.allowed;
            few.wanted(batch % 5 == 0, 4, now);
            allowed += u64::from(few.allowed);
        }
        allowed as f64 / batches as f64
    }

    #[test]
    fn few_multiprocessors_are_used_if_and_only_if_they_are_no_slower() {
        for (seconds, share) in [(0.05, 0.9..1.0), (0.1, 0.9..1.0), (0.105, 0.0..0.02), (0.2, 0.0..0.02)] {
            let allowed = allowed(&mut Few::default(), seconds, 50_000, None);
            assert!(share.contains(&allowed), "{seconds}: {allowed}");
        }
    }

    #[test]
    fn a_pause_of_the_consumer_says_nothing_of_multiprocessors() {
        for pause in 0..200 {
            for (seconds, share) in [(0.098, 0.9..1.0), (0.12, 0.0..0.06)] {
                let allowed = allowed(&mut Few::default(), seconds, 4000, Some(pause));
                assert!(share.contains(&allowed), "pause at {pause}, {seconds}: {allowed}");
            }
        }
    }

    #[test]
    fn what_was_slower_is_tried_again_and_what_was_not_soon_again() {
        let mut few = Few::default();
        allowed(&mut few, 0.12, 200, None);
        assert!(!few.allowed && few.settled > 900, "{few:?}");
        // The store is in the page cache from now on.
        let later = allowed(&mut few, 0.095, 10_000, None);
        assert!(later > 0.8 && few.settled <= 2000 && few.term == Few::TERM, "{later} {few:?}");
        // However often they were slower, it is tried again.
        allowed(&mut few, 0.12, 200_000, None);
        assert!(few.settled <= Few::LONGEST * 200, "{few:?}");
    }

    #[test]
    fn a_few_batches_in_flight_are_enough_to_go_on() {
        for depth in [1, 2, 3] {
            for period in [0.0, 0.05] {
                for few in [None, Some(FewOfThem { seconds: 1e-4, stolen: 0.0 })] {
                    let outcome = Machine { depth, period, few, batches: 40, ..MACHINE }.run(true, true);
                    assert!(outcome.seconds < 40.0 * (period + 0.06), "{depth}: {outcome:?}");
                }
            }
        }
    }

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
}
