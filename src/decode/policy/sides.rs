//! Who decodes while the training waits: what gets most done, found out by trial.
#![forbid(unsafe_code)]

/// Who decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    Gpu,
    #[default]
    Both,
    Cpu,
}

/// What each side gets done, as far as it was tried.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    side: Side,
    /// Decoded bytes in a second, in the order of the sides.
    rates: [Option<f64>; 3],
    /// Seconds for which each side was tried, and when the present one was begun with.
    seconds: [f64; 3],
    since: f64,
    /// When the others are tried again, the side that was best when they were last, and the multiple of their time that passes at most.
    again: f64,
    best: Option<Side>,
    term: f64,
    window: Window,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// What was decoded before still comes from the side before.
    begins: f64,
    /// The first and the last time that the side had decoded something. Bytes from the one to the other, and behind that.
    first: Option<f64>,
    last: f64,
    bytes: u64,
    more: u64,
    /// How often it had, and batches that were wanted.
    times: u64,
    batches: u64,
}

impl Sides {
    /// A window has at least this many batches, results of the side and seconds,
    const LEAST: (u64, u64, f64) = (8, 6, 0.05);
    /// and this many times the seconds that a chunk takes.
    const CHUNKS: f64 = 2.0;
    /// A side that does this much of the best does as well. Then the one is taken that leaves more of the GPU to the model.
    const AS_GOOD: f64 = 0.97;
    /// When the rate has changed by this factor, those of the others are of no use any more.
    const CHANGED: f64 = 1.5;
    /// Nor are they after some time, because what limited all alike, such as a disk, may be gone: when the last trials have cost no more than
    /// this share of the time,
    const COST: f64 = 0.004;
    /// but no sooner than after the first of these multiples of the time that they have taken, and no later than after the second one, which
    /// doubles each time that the same side is best, up to the third one. What trials cost is not known where rates changed meanwhile.
    const TERMS: (f64, f64, f64) = (5.0, 20.0, 160.0);

    /// Who decodes now.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The GPU (`gpu`) or a core has decoded chunks of `bytes` decoded bytes.
    pub fn done(&mut self, bytes: u64, gpu: bool, now: f64) {
        let window = &mut self.window;
        // The GPU decodes many chunks at once, so that its results are what a window of both begins and ends with.
        let counts = gpu == (self.side != Side::Cpu);
        if now < window.begins || !(counts || self.side == Side::Both) {
            return;
        }
        if window.first.is_some() {
            window.more += bytes;
        }
        if counts {
            window.first.get_or_insert(now);
            window.bytes += std::mem::take(&mut window.more);
            window.times += u64::from(now > window.last);
            window.last = now;
        }
    }

    /// A batch is wanted. `waits`: the training waits. `cores_rate`: bytes that cores alone could decode in a second. `chunk`: seconds from the
    /// beginning of a chunk to its end, of the slower side.
    pub fn batch(&mut self, waits: bool, cores_rate: f64, chunk: f64, now: f64) {
        if now < self.window.begins {
            return;
        }
        let own = self.side as usize;
        if !waits && (self.side == Side::Both || self.rates[own].is_some()) {
            self.pause(now);
            if self.side != Side::Both && now > self.again {
                // Perhaps less of the GPU is enough.
                self.rates[Side::Both as usize] = None;
                self.change(Side::Both, chunk, now);
            }
            return;
        }
        let window = &mut self.window;
        window.batches += 1;
        let seconds = window.last - window.first.unwrap_or(window.last);
        let (batches, times, least) = Self::LEAST;
        if window.batches < batches || window.times <= times || seconds < least.max(Self::CHUNKS * chunk) {
            return;
        }
        let rate = window.bytes as f64 / seconds;
        let of_trials = self.rates[own].is_none() || now > self.again;
        let changed = |old: f64| rate > Self::CHANGED * old || rate * Self::CHANGED < old;
        if self.rates[own].is_some_and(|old| now > self.again || changed(old)) {
            (self.rates, self.seconds, self.since) = ([None; 3], [0.0; 3], now - seconds);
        }
        if self.rates[own].is_none() {
            self.seconds[own] = now - self.since;
        }
        self.rates[own] = Some(rate);
        let best = self.rates.iter().flatten().fold(0.0, |best: f64, &rate| best.max(rate));
        let untried = |side: &Side| self.rates[*side as usize].is_none();
        let worth_it = |side: &Side| *side != Side::Cpu || cores_rate > best;
        let to_try =
            [Side::Both, Side::Gpu, Side::Cpu].into_iter().find(|side| untried(side) && worth_it(side));
        if let Some(next) = to_try {
            return self.change(next, chunk, now);
        }
        let as_good =
            |side: &Side| self.rates[*side as usize].is_some_and(|rate| rate >= best * Self::AS_GOOD);
        let next = [Side::Cpu, Side::Both, Side::Gpu].into_iter().find(as_good).unwrap_or(self.side);
        if of_trials {
            let lost = |(rate, seconds): (&Option<f64>, &f64)| seconds * (1.0 - rate.unwrap_or(best) / best);
            let lost: f64 = self.rates.iter().zip(&self.seconds).map(lost).sum();
            let spent: f64 = self.seconds.iter().sum();
            let (least, first, most) = Self::TERMS;
            self.term = if self.best == Some(next) { (2.0 * self.term).min(most) } else { first };
            self.again = now + (lost / Self::COST).clamp(least * spent, self.term * spent);
            (self.best, self.seconds) = (Some(next), [0.0; 3]);
        }
        self.change(next, chunk, now);
    }

    /// The consumer did something else, or the training did not wait: what was measured says nothing.
    pub fn pause(&mut self, now: f64) {
        self.window = Window { begins: now, ..Window::default() };
    }

    /// The rates that were tried, in words.
    pub fn in_words(&self) -> String {
        let rates = ["GPU", "both", "CPU"].into_iter().zip(self.rates);
        let known: Vec<_> =
            rates.filter_map(|(side, rate)| Some(format!("{side} {:.1}", rate? / 1e9))).collect();
        if known.is_empty() { String::new() } else { format!("; GB/s: {}", known.join(", ")) }
    }

    fn change(&mut self, side: Side, chunk: f64, now: f64) {
        self.pause(now);
        if side != self.side {
            (self.side, self.since) = (side, now);
            self.window.begins = now + chunk;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sides, the time, and what the cores were able to do when they last decoded.
    #[derive(Default)]
    struct Simulated {
        sides: Sides,
        now: f64,
        cores: f64,
    }

    impl Simulated {
        /// `batches` batches of 1000 bytes, each decoded at the rate of the present side. `rates`: of the GPU, both and the CPU, for a
        /// batch. Returns the share of the batches for each side.
        fn run(&mut self, batches: u64, rates: impl Fn(u64) -> [f64; 3]) -> [f64; 3] {
            let mut shares = [0.0; 3];
            for batch in 0..batches {
                let rates = rates(batch);
                let side = self.sides.side();
                if side != Side::Gpu || self.cores == 0.0 {
                    self.cores = rates[2];
                }
                shares[side as usize] += 1.0 / batches as f64;
                self.now += 1000.0 / rates[side as usize];
                self.sides.done(1000, side != Side::Cpu, self.now);
                self.sides.batch(true, self.cores, 0.1, self.now);
            }
            shares
        }
    }

    #[test]
    fn a_disk_that_was_the_limit_does_not_decide_for_ever() {
        for (cold, warm, best) in [
            ([1e3; 3], [10e3, 8e3, 1.4e3], 0),
            ([1e3; 3], [10e3, 8e3, 3e3], 0),
            ([1e3; 3], [10e3, 14e3, 6e3], 1),
            ([1e3; 3], [2e3, 3e3, 8e3], 2),
            // Fewer decoders than threads that read for the GPU, and each waits for the disk.
            ([1e3, 0.9e3, 0.25e3], [5e3, 8e3, 4e3], 1),
            ([1e3, 0.9e3, 0.25e3], [2e3, 5e3, 6e3], 2),
        ] {
            for warming in [0, 100, 400] {
                let mut simulated = Simulated::default();
                simulated.run(300, |_| cold);
                simulated.run(warming, |batch| {
                    let share = batch as f64 / warming as f64;
                    std::array::from_fn(|side| cold[side] + share * (warm[side] - cold[side]))
                });
                // As long as the disk's limit was believed in, and the first trials.
                simulated.run(4000, |_| warm);
                let shares = simulated.run(20_000, |_| warm);
                assert!(shares[best] > 0.95, "{cold:?}, {warm:?} after {warming}: {shares:?}");
            }
        }
    }

    #[test]
    fn trials_cost_little() {
        for rates in [[10e3, 9e3, 6e3], [10e3, 9e3, 1e3], [10e3, 5e3, 1e3]] {
            let mut simulated = Simulated::default();
            let shares = simulated.run(4000, |_| rates);
            assert!(shares[0] > 0.9, "{shares:?}");
            let begun = simulated.now;
            simulated.run(100_000, |_| rates);
            assert!((simulated.now - begun) / 10_000.0 < 1.01, "{shares:?}");
        }
    }

    #[test]
    fn less_of_the_gpu_is_tried_again_once_the_training_does_not_wait() {
        let mut simulated = Simulated::default();
        simulated.run(300, |_| [10e3, 8e3, 1e3]);
        assert_eq!(simulated.sides.side(), Side::Gpu);
        for _ in 0..10_000 {
            simulated.now += 0.1;
            simulated.sides.batch(false, 1e3, 0.1, simulated.now);
        }
        assert_eq!(simulated.sides.side(), Side::Both);
    }
}
