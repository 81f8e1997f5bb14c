//! What the calls for batches say about the training behind DALI's queue.
#![forbid(unsafe_code)]

/// DALI's executor calls for a batch, waits until it is complete, puts it into its queue and calls again once there is room. So a call that
/// came long after the batch before it says that the queue was full: the training has just taken a batch, and is what limits.
#[derive(Clone, Debug, Default)]
pub struct Training {
    calls: u64,
    /// When the executor called last and when it got its batch.
    called: f64,
    returned: f64,
    /// Seconds between two calls, pauses shortened, and the least seconds between a batch and the next call, which are the executor's own.
    interval: f64,
    least_gap: f64,
    /// The share of the last few calls that found the queue full.
    full: f64,
    /// When a call found the queue full last, and calls since.
    last_full: f64,
    calls_since: u64,
    /// Seconds of a training step, 0 as long as the queue was never full.
    step: f64,
    /// When the training would have to wait for the next batch.
    starves: f64,
}

impl Training {
    /// A queue was full if the executor did nothing for this share of the usual time between two calls, besides what it needs itself.
    /// In simulation 0.15 to 0.35 are as good.
    const RESTS: f64 = 0.25;
    /// What the executor needs itself is the least that was between a batch and the next call, and no more than these seconds: with DALI's
    /// queue for a single batch the training's step always lies in between.
    const OWN: f64 = 0.002;
    /// The training waits if fewer than this share of the last calls found the queue full.
    const WAITS: f64 = 0.5;
    /// The weight of a new call in that share, and of a new step in the mean.
    const WEIGHTS: (f64, f64) = (0.3, 0.1);
    /// A pause, such as a validation, counts as this many usual intervals.
    const PAUSE: f64 = 8.0;
    /// Calls that a mean of intervals has at least, besides the batches in flight, which may all have been completed at once.
    const LEAST: f64 = 10.0;
    /// By which factor a single step may differ from the mean. The first steps of a model take up to thirty times as long as later ones.
    const CHANGE: f64 = 2.0;

    /// The executor calls for a batch while `in_flight` of them are.
    pub fn wanted(&mut self, in_flight: u64, now: f64) {
        self.calls += 1;
        if self.calls == 1 {
            (self.called, self.least_gap) = (now, f64::INFINITY);
            return;
        }
        let gap = now - self.returned;
        let seconds = now - std::mem::replace(&mut self.called, now);
        let weight = (1.0 / (Self::LEAST + in_flight as f64)).max(1.0 / (self.calls - 1) as f64);
        let most = if self.interval > 0.0 { Self::PAUSE * self.interval } else { f64::INFINITY };
        self.interval += weight * (seconds.min(most) - self.interval);
        self.least_gap = self.least_gap.min(gap);
        let full = gap - self.least_gap.min(Self::OWN) > Self::RESTS * self.interval;
        self.full += Self::WEIGHTS.0 * (f64::from(u8::from(full)) - self.full);
        self.calls_since += 1;
        if full {
            let step = (now - self.last_full) / self.calls_since as f64;
            let mean = self.step + Self::WEIGHTS.1 * (step.min(Self::CHANGE * self.step) - self.step);
            self.step = if self.step > 0.0 { mean.min(Self::CHANGE * step) } else { step };
            (self.last_full, self.calls_since) = (now, 0);
        }
        // The other batch of DALI's queue, which holds two unless the user wants another number, lasts for a step from now on if the
        // queue was full, and no longer otherwise. Where it holds one or three, the same does (simulated).
        let latest = now + self.step;
        self.starves = if full { latest } else { self.starves.min(latest) };
    }

    /// The executor got its batch.
    pub fn handed_over(&mut self, now: f64) {
        self.returned = now;
        self.starves = self.starves.max(now) + self.step;
    }

    /// Whether the training waits for the reader, as far as that is known.
    pub fn waits(&self) -> bool {
        self.full < Self::WAITS || self.step == 0.0
    }

    /// Seconds of a training step, if it does not wait.
    pub fn step(&self) -> Option<f64> {
        (!self.waits()).then_some(self.step)
    }

    /// Seconds until the training needs the next batch.
    pub fn starves_in(&self, now: f64) -> f64 {
        (self.starves - now).max(0.0)
    }

    /// Seconds between two calls, 0 before the second.
    pub fn interval(&self) -> f64 {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A training with steps of `step` seconds and a queue for `depth` batches, for which each batch takes `run` seconds after the call.
    /// Returns what is known of it after `batches`.
    fn after(step: f64, run: f64, depth: usize, batches: u64) -> Training {
        const OVERHEAD: f64 = 0.0005;
        let mut training = Training::default();
        let (mut now, mut queue, mut free) = (0.0, std::collections::VecDeque::new(), 0.0f64);
        for _ in 0..batches {
            // The training takes a batch when it has done its step.
            while queue.len() >= depth {
                let there: f64 = queue.pop_front().unwrap();
                free = free.max(there) + step;
                now = f64::max(now, free - step);
            }
            now += OVERHEAD;
            training.wanted(4, now);
            now += run;
            training.handed_over(now);
            queue.push_back(now);
        }
        training
    }

    #[test]
    fn a_training_that_limits_does_not_wait_however_long_run_blocks() {
        for (run, depth) in [(0.0, 2), (0.03, 2), (0.06, 2), (0.06, 3)] {
            let training = after(0.1, run, depth, 60);
            let step = training.step().unwrap();
            assert!((0.095..0.105).contains(&step), "{run}, {depth}: {step}");
        }
    }

    #[test]
    fn a_training_that_waits_and_a_consumer_that_only_reads_are_told_from_it() {
        for (step, run) in [(0.1, 0.15), (0.1, 0.3), (0.0, 0.01), (0.0, 0.002)] {
            assert!(after(step, run, 2, 60).waits(), "{step}, {run}");
        }
    }
}
