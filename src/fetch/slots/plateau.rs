//! How many requests in flight are worth it.

use std::time::Duration;

/// A limit that rises as long as the time to the first byte does not, and falls when it has risen.
#[derive(Debug)]
pub(super) struct Plateau {
    limit: usize,
    most: usize,
    /// A request had to wait since the limit changed.
    was_full: bool,
    /// Times to the first byte since the limit changed.
    times: Vec<Duration>,
    /// The median of times to the first byte where requests do not wait for each other: that with the least limit, or less. A store that
    /// becomes slower brings the limit down to the least, where it is measured anew.
    undisturbed: Option<Duration>,
}

impl Plateau {
    /// The least limit, and that at first: at 30 ms to the first byte and with parts of 10 MB it allows 20 GB/s.
    pub const AT_FIRST: usize = 64;
    /// Answers whose median counts, at least.
    const ANSWERS: usize = 64;
    /// Requests wait for each other when the median is that many times the undisturbed one.
    const RISEN: f64 = 1.25;

    pub fn new(most: usize) -> Self {
        let limit = Self::AT_FIRST.min(most);
        Self { limit, most, was_full: false, times: vec![], undisturbed: None }
    }

    /// How many requests may be in flight.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A request has to wait because of the limit.
    pub fn note_full(&mut self) {
        self.was_full = true;
    }

    /// An answer began `time` after its request. Returns whether the limit has risen.
    pub fn answered(&mut self, time: Duration) -> bool {
        self.times.push(time);
        if self.times.len() < self.limit.max(Self::ANSWERS) {
            return false;
        }
        let middle = self.times.len() / 2;
        let median = *self.times.select_nth_unstable(middle).1;
        self.times.clear();
        let least = Self::AT_FIRST.min(self.most);
        let known = self.undisturbed.filter(|_| self.limit > least);
        let undisturbed = *self.undisturbed.insert(known.map_or(median, |known| known.min(median)));
        let was_full = std::mem::take(&mut self.was_full);
        let before = self.limit;
        if median > undisturbed.mul_f64(Self::RISEN) {
            self.limit = (self.limit - self.limit / 8).max(least);
        } else if was_full {
            self.limit = (self.limit + self.most / 16).min(self.most);
        }
        self.limit > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit after many answers of a store of which `at_once` requests do not wait for each other, each `time` long.
    fn found(plateau: &mut Plateau, at_once: usize, time: Duration) -> usize {
        for _ in 0..40_000 {
            plateau.note_full();
            plateau.answered(time.mul_f64((plateau.limit() as f64 / at_once as f64).max(1.0)));
        }
        plateau.limit()
    }

    #[test]
    fn the_limit_rises_until_requests_wait_for_each_other() {
        let ms = Duration::from_millis;
        let mut plateau = Plateau::new(256);
        assert_eq!(plateau.limit(), 64);
        assert_eq!(found(&mut plateau, 1000, ms(100)), 256);
        // The store, or its network, becomes slower: 150 of them are waiting for the others.
        let limit = found(&mut plateau, 100, ms(100));
        assert!((100..=144).contains(&limit), "{limit}");
        // It is fast, and one after the other is as good.
        let mut plateau = Plateau::new(256);
        let limit = found(&mut plateau, 1, ms(1));
        assert!((64..=96).contains(&limit), "{limit}");
    }

    #[test]
    fn a_store_that_becomes_slower_is_followed() {
        let mut plateau = Plateau::new(256);
        found(&mut plateau, 1000, Duration::from_millis(10));
        assert_eq!(plateau.limit(), 256);
        (0..300 * 256).for_each(|_| {
            plateau.note_full();
            plateau.answered(Duration::from_millis(17));
        });
        assert_eq!(plateau.limit(), 256);
    }

    #[test]
    fn a_limit_that_nobody_reaches_stays() {
        let mut plateau = Plateau::new(256);
        (0..10_000).for_each(|_| _ = plateau.answered(Duration::from_millis(10)));
        assert_eq!(plateau.limit(), 64);
        assert_eq!(Plateau::new(4).limit(), 4);
        assert!((0..1000).all(|_| !Plateau::new(4).answered(Duration::from_millis(10))));
    }
}
