//! Who decodes from when the consumer had to wait for a batch until it has gone without a wait for long: what gets most done, found out by trial.
#![forbid(unsafe_code)]

/// Who decodes then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    #[default]
    Gpu,
    Both,
    Cpu,
}

/// How much each side gets done, as far as it was tried or is known from the rate of cores.
#[derive(Clone, Debug, Default)]
pub struct Trials {
    side: Side,
    /// Decoded bytes in a second, in the order of the sides.
    rates: [Option<f64>; 3],
    /// The side that was best when all had been tried last, and its rate then.
    best: Option<(Side, f64)>,
    /// Trials since all sides had been tried last, and after how many of these the next round begins.
    kept: u64,
    term: u64,
    /// When the present trial began, which is when the batches that the side before had begun with are through; batches and bytes since.
    since: Option<f64>,
    batches: u64,
    bytes: u64,
    /// When the present side took over, and bytes since.
    begun: f64,
    all_bytes: u64,
}

impl Trials {
    /// The fewest batches, and the least seconds, of a trial.
    const LEAST: (u64, f64) = (8, 0.05);
    /// The most batches that a trial needs. Between these bounds it has as many as are in flight.
    const MOST: u64 = 16;
    /// A side that does this much of the best does as well. Then the one is taken that leaves more of the GPU to others.
    const AS_GOOD: f64 = 0.97;
    /// Cores that could do this much of what is done with the GPU are worth a trial.
    const WORTH_IT: f64 = 0.6;
    /// A side that is slower than the best one by this factor is given up early,
    const GIVEN_UP: f64 = 2.0;
    /// after half of the batches in flight, because the side before had begun with those, but not before this many.
    const SOON: u64 = 3;
    /// When the rate has changed by this factor since the others were tried, theirs are of no use any more.
    const CHANGED: f64 = 1.5;
    /// All sides are tried again after this many trials of the best one, because what limited all alike, such as a disk, may be gone. The
    /// number begins with the first of these and doubles each time that the same side is best, up to the second.
    const TERM: (u64, u64) = (64, 512);
    /// The first of these behind the first round, if another side than the GPU was best in it. The GPU is tried first, and the source of a reader that
    /// has just begun may become faster meanwhile, as a network does: what is tried last looks best.
    const FIRST_TERM: u64 = 4;

    /// Who decodes now.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Chunks of `bytes` decoded bytes were decoded.
    pub fn done(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.all_bytes += bytes;
    }

    /// The consumer wants a batch, in a time in which it has to wait. `cores_rate`: bytes that all cores together can decode in a second, 0 if that
    /// is not known.
    pub fn batch(&mut self, in_flight: u64, cores_rate: f64, now: f64) {
        self.batches += 1;
        if self.begun > now {
            (self.begun, self.all_bytes) = (now, 0);
        }
        let best = self.best_rate();
        let rate = self.all_bytes as f64 / (now - self.begun);
        if self.rates[self.side as usize].is_none()
            && self.batches >= (in_flight / 2).max(Self::SOON)
            && rate * Self::GIVEN_UP < best
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
        if self.batches < in_flight.clamp(Self::LEAST.0, Self::MOST) || seconds < Self::LEAST.1 {
            return;
        }
        self.ends(self.bytes as f64 / seconds, cores_rate, now);
    }

    /// Ends a trial, in which the present side has decoded `rate` bytes in a second, and chooses the side of the next one.
    fn ends(&mut self, rate: f64, cores_rate: f64, now: f64) {
        (self.since, self.batches, self.bytes) = (Some(now), 0, 0);
        if let Some((_, before)) = self.best
            && self.all_tried()
        {
            self.kept += 1;
            let changed = rate > before * Self::CHANGED || rate * Self::CHANGED < before;
            if changed || self.kept >= self.term {
                self.rates = [None; 3];
            }
            if changed {
                self.best = None;
            }
        }
        let own = self.side as usize;
        let in_round = !self.all_tried();
        self.rates[own] = Some(rate);
        if self.side != Side::Cpu && cores_rate > 0.0 && cores_rate < self.best_rate() * Self::WORTH_IT {
            self.rates[Side::Cpu as usize].get_or_insert(cores_rate);
        }
        let next = self.next();
        if in_round && self.all_tried() {
            let is_first = self.term == 0;
            self.term = match self.best {
                Some((best, _)) if best == next => (2 * self.term).clamp(Self::TERM.0, Self::TERM.1),
                _ if is_first && next != Side::Gpu => Self::FIRST_TERM,
                _ => Self::TERM.0,
            };
            self.best = self.rates[next as usize].map(|rate| (next, rate));
            self.kept = 0;
        }
        if next != self.side {
            (self.side, self.since, self.begun, self.all_bytes) = (next, None, now, 0);
        }
    }

    /// The rates that were tried or that cores were taken to be too slow for, in words.
    pub fn in_words(&self) -> String {
        let rates = ["GPU", "both", "CPU"].into_iter().zip(self.rates);
        let known: Vec<_> =
            rates.filter_map(|(side, rate)| Some(format!("{side} {:.1}", rate? / 1e9))).collect();
        if known.is_empty() { String::new() } else { format!("; GB/s: {}", known.join(", ")) }
    }

    /// What was measured in the present trial says nothing, because the consumer does not wait any more or has paused.
    pub fn interrupt(&mut self) {
        (self.since, self.batches, self.begun) = (None, 0, f64::INFINITY);
    }

    fn best_rate(&self) -> f64 {
        self.rates.iter().flatten().fold(0.0, |best: f64, &rate| best.max(rate))
    }

    fn all_tried(&self) -> bool {
        self.rates.iter().all(Option::is_some)
    }

    fn next(&self) -> Side {
        const SIDES: [Side; 3] = [Side::Gpu, Side::Both, Side::Cpu];
        if let Some(untried) = SIDES.into_iter().find(|&side| self.rates[side as usize].is_none()) {
            return untried;
        }
        let best = self.best_rate();
        let as_good =
            |side: &Side| self.rates[*side as usize].is_some_and(|rate| rate >= best * Self::AS_GOOD);
        SIDES.into_iter().rev().find(as_good).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_FLIGHT: u64 = 16;

    /// Trials, the time, and what the cores were able to do when they last decoded.
    #[derive(Default)]
    struct Simulated {
        trials: Trials,
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
                let side = self.trials.side();
                if side != Side::Gpu || self.cores == 0.0 {
                    self.cores = rates[2];
                }
                shares[side as usize] += 1.0 / batches as f64;
                self.trials.done(1000);
                self.now += 1000.0 / rates[side as usize];
                self.trials.batch(IN_FLIGHT, self.cores, self.now);
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
                simulated.run(4 * IN_FLIGHT * Trials::TERM.0, |_| warm);
                let shares = simulated.run(20_000, |_| warm);
                assert!(shares[best] > 0.95, "{cold:?}, {warm:?} after {warming}: {shares:?}");
            }
        }
    }

    #[test]
    fn cores_that_were_tried_last_while_a_network_became_fast_are_not_kept_for_long() {
        let able: [f64; 3] = [40e3, 30e3, 8e3];
        // Batches in which the network becomes twice as fast.
        for doubles in [10.0, 20.0, 40.0, 60.0, 80.0, 120.0] {
            let mut simulated = Simulated::default();
            simulated.run(500, |batch| able.map(|rate| rate.min(2e3 * f64::exp2(batch as f64 / doubles))));
            let shares = simulated.run(500, |_| able);
            assert!(shares[2] < 0.1, "{doubles}: {shares:?}");
        }
    }

    #[test]
    fn what_is_best_is_tried_again_less_and_less() {
        for rates in [[10e3, 9e3, 6e3], [10e3, 9e3, 1e3]] {
            let mut simulated = Simulated::default();
            let shares = simulated.run(4000, |_| rates);
            assert!(shares[0] > 0.9, "{shares:?}");
            let shares = simulated.run(100_000, |_| rates);
            assert!(shares[0] > 0.98 && simulated.trials.term == Trials::TERM.1, "{shares:?}");
        }
    }
}
