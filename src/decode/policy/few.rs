//! Whether the GPU may keep to few of its multiprocessors, found out by trial.
#![forbid(unsafe_code)]

/// Whether few multiprocessors are enough. That the consumer waits at times says little, since it waits ahead of its own
/// consumer, and with all of them too. So batches are timed with few, from one wait to another, and at least as many with all.
#[derive(Clone, Copy, Debug)]
pub struct Few {
    allowed: bool,
    /// So many batches are not looked at.
    settled: u64,
    /// So many times as many as were timed will not be, where few were slower.
    term: u64,
    /// Of the batches that are timed: since when, how many, and whether chunks were decoded on few.
    since: Option<f64>,
    batches: u64,
    used: bool,
    /// When the consumer got its last batch, and seconds that it usually takes until it wants the next one.
    last: f64,
    usual: f64,
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
            usual: 0.0,
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
    /// A consumer that wants no batch for so many seconds, and for so many times as long as usual, does something else.
    const PAUSE: (f64, f64) = (1.0, 8.0);
    /// How much a new figure counts for what is usual.
    const WEIGHT: f64 = 0.1;

    /// Whether they may be used.
    pub fn are_allowed(&self) -> bool {
        self.allowed
    }

    /// Chunks are decoded on few.
    pub fn note_use(&mut self) {
        self.used = true;
    }

    /// The consumer got a batch for which it had waited.
    pub fn handed_over(&mut self, now: f64) {
        self.last = now;
    }

    /// The consumer wants a batch, of which so many are in flight. Whether it did something else before.
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
            // What was in store is gone, or is there again.
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
    fn long_steps_are_no_pauses() {
        for step in [0.9, 1.1, 2.0, 30.0] {
            for (times, wait, share) in [(1.0, 0.5, 0.9..1.0), (1.1, 0.0, 0.0..0.1), (1.1, 0.5, 0.0..0.1)] {
                let (mut few, mut now, mut allowed) = (Few::default(), 0.0, 0);
                for batch in 0..4000 {
                    few.used |= few.allowed;
                    now += step * if few.allowed { times } else { 1.0 };
                    let waits = batch % 5 == 0;
                    few.wanted(waits, 4, now);
                    if waits {
                        now += wait * step;
                        few.handed_over(now);
                    }
                    allowed += u64::from(few.allowed);
                }
                let allowed = f64::from(allowed as u32) / 4000.0;
                assert!(share.contains(&allowed), "{step} s, {times}, {wait}: {allowed}");
            }
        }
    }

    #[test]
    fn a_long_wait_is_no_pause() {
        // Few lose ten seconds now and then, far more than the others take.
        let (mut few, mut now) = (Few::default(), 0.0);
        for batch in 0..200 {
            now += 0.1;
            few.used |= few.allowed;
            let waits = batch % 20 == 0;
            few.wanted(waits, 4, now);
            if waits && few.allowed {
                now += 10.0;
                few.handed_over(now);
            }
        }
        assert!(!few.allowed && few.settled > 0, "{few:?}");
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
}
