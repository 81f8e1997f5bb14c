//! Who decodes while the consumer waits for every batch: what gets most done, found out by trial.
#![forbid(unsafe_code)]

/// Who decodes while the consumer waits all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    #[default]
    Gpu,
    Both,
    Cpu,
}

/// How much each of them gets done, as far as it was tried.
#[derive(Clone, Debug, Default)]
pub struct Trials {
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

    /// Who decodes now.
    pub fn side(&self) -> Side {
        self.side
    }

    /// So many bytes were decoded.
    pub fn done(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.all_bytes += bytes;
    }

    /// The consumer got a batch for which it had waited. The cores together could do so many bytes in a second.
    pub fn batch(&mut self, in_flight: u64, cores_rate: f64, now: f64) {
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
    pub fn interrupt(&mut self) {
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
