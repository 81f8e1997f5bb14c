//! Whether the GPU worker should decode on the SM partition, found out by trial.
#![forbid(unsafe_code)]

/// Whether the SM partition decodes fast enough. That the consumer waits at times says little: it waits ahead of the training,
/// and with all multiprocessors too. So batches are timed with the partition, from one wait to another, and then at least as
/// many batches with all multiprocessors.
#[derive(Clone, Copy, Debug)]
pub struct SmPartition {
    allowed: bool,
    /// Batches until the next ones are timed.
    settled: u64,
    /// Where the partition was slower, the number of batches without it, in multiples of the batches that were timed.
    term: u64,
    /// Of the batches that are timed: since when, how many, and whether chunks were decoded on the partition.
    since: Option<f64>,
    batches: u64,
    used: bool,
    /// When the consumer got its last batch, and the seconds that it usually takes until it wants the next one.
    last: f64,
    usual: f64,
    /// Batches that were timed with the partition, and seconds of each.
    timed: u64,
    pace: f64,
}

impl Default for SmPartition {
    fn default() -> Self {
        Self {
            allowed: true,
            // The first batches wait for a reader that has just begun.
            settled: Self::LEAST.0,
            term: Self::TERM,
            since: None,
            batches: 0,
            used: false,
            last: 0.0,
            usual: 0.0,
            timed: 0,
            pace: 0.0,
        }
    }
}

impl SmPartition {
    /// The least number of batches and seconds that are timed.
    const LEAST: (u64, f64) = (32, 1.0);
    /// A result holds for this multiple of the batches that were timed. Each result against the partition in a row holds
    /// `LONGER` times as long as the one before, up to `LONGEST` times the batches.
    const TERM: u64 = 32;
    const LONGER: u64 = 4;
    const LONGEST: u64 = 512;
    /// The partition is too slow if a batch takes more than this, in multiples of a batch with all multiprocessors.
    const AS_GOOD: f64 = 1.005;
    /// A consumer that wants no batch for this many seconds, and for this multiple of the usual time, does something else.
    const PAUSE: (f64, f64) = (1.0, 8.0);
    /// How much a new figure counts for what is usual.
    const WEIGHT: f64 = 0.1;

    /// Whether the partition may be used.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Notes that chunks are decoded on the partition.
    pub fn note_use(&mut self) {
        self.used = true;
    }

    /// The consumer got a batch.
    pub fn handed_over(&mut self, now: f64) {
        self.last = now;
    }

    /// The consumer wants a batch. `waits`: it has to wait for it. `in_flight`: batches in flight. Returns whether the consumer did
    /// something else before.
    pub fn wanted(&mut self, waits: bool, in_flight: u64, now: f64) -> bool {
        let gap = now - self.last;
        self.last = now;
        let most = Self::PAUSE.0.max(Self::PAUSE.1 * self.usual);
        let paused = gap > most;
        // A pause counts for little, so that only what takes long mostly is usual.
        self.usual += Self::WEIGHT * (gap.min(most) - self.usual);
        self.time(waits, in_flight, paused, now);
        paused
    }

    fn time(&mut self, waits: bool, in_flight: u64, paused: bool, now: f64) {
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
            // The batches that were ready are gone, or are there again.
            let begins = if self.allowed { waits } else { self.batches >= 2 * in_flight };
            if begins {
                self.restart(Some(now));
            }
            return;
        };
        if paused {
            return self.restart(None);
        }
        let seconds = now - since;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of the batches for which the partition was allowed, if each takes `seconds` with it, and 0.1 with all
    /// multiprocessors. Every fifth batch is waited for, and there is a pause before batch `pause`.
    fn allowed(partition: &mut SmPartition, seconds: f64, batches: u64, pause: Option<u64>) -> f64 {
        let mut allowed = 0;
        for batch in 0..batches {
            let pause = if pause == Some(batch) { 60.0 } else { 0.0 };
            let now = partition.last + pause + if partition.allowed { seconds } else { 0.1 };
            partition.used |= partition.allowed;
            partition.wanted(batch % 5 == 0, 4, now);
            allowed += u64::from(partition.allowed);
        }
        allowed as f64 / batches as f64
    }

    #[test]
    fn the_partition_is_used_if_and_only_if_it_is_no_slower() {
        for (seconds, share) in [(0.05, 0.9..1.0), (0.1, 0.9..1.0), (0.105, 0.0..0.02), (0.2, 0.0..0.02)] {
            let allowed = allowed(&mut SmPartition::default(), seconds, 50_000, None);
            assert!(share.contains(&allowed), "{seconds}: {allowed}");
        }
    }

    #[test]
    fn a_pause_of_the_consumer_says_nothing_of_the_partition() {
        for pause in 0..200 {
            for (seconds, share) in [(0.098, 0.9..1.0), (0.12, 0.0..0.06)] {
                let allowed = allowed(&mut SmPartition::default(), seconds, 4000, Some(pause));
                assert!(share.contains(&allowed), "pause at {pause}, {seconds}: {allowed}");
            }
        }
    }

    #[test]
    fn long_steps_are_no_pauses() {
        for step in [0.9, 1.1, 2.0, 30.0] {
            for (times, wait, share) in [(1.0, 0.5, 0.9..1.0), (1.1, 0.0, 0.0..0.1), (1.1, 0.5, 0.0..0.1)] {
                let (mut partition, mut now, mut allowed) = (SmPartition::default(), 0.0, 0);
                for batch in 0..4000 {
                    partition.used |= partition.allowed;
                    now += step * if partition.allowed { times } else { 1.0 };
                    let waits = batch % 5 == 0;
                    partition.wanted(waits, 4, now);
                    if waits {
                        now += wait * step;
                        partition.handed_over(now);
                    }
                    allowed += u64::from(partition.allowed);
                }
                let allowed = f64::from(allowed as u32) / 4000.0;
                assert!(share.contains(&allowed), "{step} s, {times}, {wait}: {allowed}");
            }
        }
    }

    #[test]
    fn a_long_wait_is_no_pause() {
        // The partition loses ten seconds now and then, far more than the other batches take.
        let (mut partition, mut now) = (SmPartition::default(), 0.0);
        for batch in 0..200 {
            now += 0.1;
            partition.used |= partition.allowed;
            let waits = batch % 20 == 0;
            partition.wanted(waits, 4, now);
            if waits && partition.allowed {
                now += 10.0;
                partition.handed_over(now);
            }
        }
        assert!(!partition.allowed && partition.settled > 0, "{partition:?}");
    }

    #[test]
    fn what_was_slower_is_tried_again_and_what_was_not_soon_again() {
        let mut partition = SmPartition::default();
        allowed(&mut partition, 0.12, 200, None);
        assert!(!partition.allowed && partition.settled > 900, "{partition:?}");
        // The store is in the page cache from now on.
        let later = allowed(&mut partition, 0.095, 10_000, None);
        assert!(
            later > 0.8 && partition.settled <= 2000 && partition.term == SmPartition::TERM,
            "{later} {partition:?}"
        );
        // However often the partition was slower, it is tried again.
        allowed(&mut partition, 0.12, 200_000, None);
        assert!(partition.settled <= SmPartition::LONGEST * 200, "{partition:?}");
    }
}
