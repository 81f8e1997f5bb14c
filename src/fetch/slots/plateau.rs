//! How many requests in flight are worth it.

use std::time::Duration;

/// A limit that rises as long as requests take hardly longer with more of them in flight, and falls when they wait for each other: at the store, in
/// the network or on this machine. Then as many more would only wait longer.
#[derive(Debug)]
pub(super) struct Plateau {
    limit: usize,
    most: usize,
    /// A request had to wait since the limit was last looked at.
    was_full: bool,
    /// Times of requests, from when they were sent to the last byte, since then.
    times: Vec<Duration>,
    /// The time of requests that do not wait for each other: that with the least limit, or less. A store that becomes slower brings the limit down to
    /// the least, where it is measured anew.
    undisturbed: Option<Duration>,
}

impl Plateau {
    /// The least limit, and that at first.
    pub const LEAST: usize = 32;
    /// How many requests are looked at together, at least.
    const REQUESTS: usize = 64;
    /// Of these the time counts that this share takes at most: those for small indexes of shards, which may be half of them, say little.
    const SHARE: (usize, usize) = (3, 4);
    /// The limit is right when that time is this many times the undisturbed one: some requests wait for others, so that there is always one that
    /// can go on. It is also the most by which the limit rises at once,
    const RISEN: f64 = 1.5;
    /// and this the most by which it falls.
    const FALLS: f64 = 0.5;

    pub fn new(most: usize) -> Self {
        let limit = Self::LEAST.min(most);
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

    /// A request has ended, `time` after it was sent.
    pub fn ended(&mut self, time: Duration) {
        self.times.push(time);
        if self.times.len() < self.limit.max(Self::REQUESTS) {
            return;
        }
        let nth = self.times.len() * Self::SHARE.0 / Self::SHARE.1;
        let time = *self.times.select_nth_unstable(nth).1;
        self.times.clear();
        let least = Self::LEAST.min(self.most);
        let known = self.undisturbed.filter(|_| self.limit > least);
        let undisturbed = *self.undisturbed.insert(known.map_or(time, |known| known.min(time)));
        let was_full = std::mem::take(&mut self.was_full);
        let change =
            (Self::RISEN * undisturbed.as_secs_f64() / time.as_secs_f64().max(1e-9)).max(Self::FALLS);
        if was_full || change < 1.0 {
            self.limit = ((self.limit as f64 * change) as usize).clamp(least, self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit after many requests to a store of which `at_once` do not wait for each other, each `time` long.
    fn found(plateau: &mut Plateau, at_once: usize, time: Duration) -> usize {
        for _ in 0..40_000 {
            plateau.note_full();
            plateau.ended(time.mul_f64((plateau.limit() as f64 / at_once as f64).max(1.0)));
        }
        plateau.limit()
    }

    #[test]
    fn the_limit_rises_until_requests_wait_for_each_other() {
        let ms = Duration::from_millis;
        let mut plateau = Plateau::new(256);
        assert_eq!(plateau.limit(), 32);
        assert_eq!(found(&mut plateau, 1000, ms(100)), 256);
        // The store, or its network, becomes slower: a third of them waits for the others.
        let limit = found(&mut plateau, 100, ms(100));
        assert!((145..=150).contains(&limit), "{limit}");
        // It is fast, and one after the other is as good.
        let mut plateau = Plateau::new(256);
        let limit = found(&mut plateau, 1, ms(1));
        assert!((32..=48).contains(&limit), "{limit}");
    }

    #[test]
    fn a_fast_rise_takes_some_hundred_requests() {
        let mut plateau = Plateau::new(256);
        let risen = (1..).find(|_| {
            plateau.note_full();
            plateau.ended(Duration::from_millis(100));
            plateau.limit() == 256
        });
        assert!(risen.is_some_and(|requests| requests < 1000), "{risen:?}");
    }

    #[test]
    fn a_store_that_becomes_slower_is_followed() {
        let mut plateau = Plateau::new(256);
        found(&mut plateau, 1000, Duration::from_millis(10));
        assert_eq!(plateau.limit(), 256);
        assert_eq!(found(&mut plateau, 1000, Duration::from_millis(37)), 256);
    }

    #[test]
    fn a_limit_that_nobody_reaches_stays() {
        let mut plateau = Plateau::new(256);
        (0..10_000).for_each(|_| plateau.ended(Duration::from_millis(10)));
        assert_eq!(plateau.limit(), 32);
        assert_eq!(found(&mut Plateau::new(4), 1000, Duration::from_millis(10)), 4);
    }
}
