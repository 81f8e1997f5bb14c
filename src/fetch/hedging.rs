//! Hedged requests: a second one for the same bytes, beside one whose answer is late. How long answers take to begin says from when on one is late.
//!
//! Source: J. Dean and L. A. Barroso, The Tail at Scale, 2013.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The times of the last answers.
#[derive(Debug)]
pub(super) struct Hedging(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    times: Vec<Duration>,
    /// What was asked for and not used up by hedging, in requests.
    credit: u32,
    /// Where the next goes.
    next: usize,
    delay: Option<Duration>,
}

impl Hedging {
    /// How many times are kept: of the last answers.
    const TIMES: usize = 256;
    /// The delay is computed again after this many answers.
    const EVERY: usize = 64;
    /// The shortest delay, because a second request has its price.
    pub const LEAST: Duration = Duration::from_millis(50);
    /// So many requests let one be made again, because each has its price,
    const REQUESTS: u32 = 50;
    /// and no more than this at once, because a store that stands still as a whole is not helped by more.
    const AT_ONCE: u32 = 16;

    pub fn new() -> Self {
        Self(Mutex::default())
    }

    /// Notes how long an answer took to begin.
    pub fn note(&self, time: Duration) {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        match state.times.get_mut(state.next) {
            Some(place) => *place = time,
            None => state.times.push(time),
        }
        state.next = (state.next + 1) % Self::TIMES;
        if state.next.is_multiple_of(Self::EVERY) {
            let mut sorted = state.times.clone();
            sorted.sort_unstable();
            let (median, late) = (sorted[sorted.len() / 2], sorted[sorted.len() * 97 / 100]);
            state.delay = Some(late.max(2 * median).max(Self::LEAST));
        }
    }

    /// Notes that a request is made for the first time.
    pub fn note_request(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.credit = (state.credit + 1).min(Self::REQUESTS * Self::AT_ONCE);
    }

    /// Whether a request that is late may be hedged, which is then counted.
    pub fn may_hedge(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = state.credit.checked_sub(Self::REQUESTS);
        state.credit = left.unwrap_or(state.credit);
        left.is_some()
    }

    /// How long nearly all answers take at most; `None` until enough are known.
    pub fn delay(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_fifty_is_made_again_and_few_at_once() {
        let hedging = Hedging::new();
        (0..49).for_each(|_| hedging.note_request());
        assert!(!hedging.may_hedge());
        hedging.note_request();
        assert!(hedging.may_hedge() && !hedging.may_hedge());
        (0..100_000).for_each(|_| hedging.note_request());
        assert_eq!((0..1000).filter(|_| hedging.may_hedge()).count(), 16);
    }

    #[test]
    fn an_answer_is_late_that_takes_longer_than_nearly_all_others() {
        let ms = Duration::from_millis;
        let hedging = Hedging::new();
        (0..63).for_each(|_| hedging.note(ms(10)));
        assert_eq!(hedging.delay(), None);
        hedging.note(ms(10));
        assert_eq!(hedging.delay(), Some(Hedging::LEAST));
        // A fifth takes 250 ms: they are no exception.
        (0..256).for_each(|i| hedging.note(ms(if i % 5 == 0 { 250 } else { 100 })));
        assert_eq!(hedging.delay(), Some(ms(250)));
        // One in two hundred.
        (0..256).for_each(|i| hedging.note(ms(if i == 100 { 2000 } else { 100 })));
        assert_eq!(hedging.delay(), Some(ms(200)));
        (0..256).for_each(|i| hedging.note(ms(if i % 20 == 0 { 2000 } else { 100 })));
        assert_eq!(hedging.delay(), Some(ms(2000)));
    }
}
