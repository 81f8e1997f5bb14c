//! How many requests may be in flight: fewer when a store says that it has no time, more again when it answers.
//!
//! Requests for batches that are not planned yet have a lower limit, which is found by measuring: more in flight are worth it as long as
//! requests take hardly longer than they did with fewer. And requests are paced, so that they do not wait for each other in crowds, except
//! the parts of one object, which are asked for together.

mod pacing;
mod plateau;

use pacing::Pacing;
use plateau::Plateau;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Slots for requests. One limit holds for all threads.
#[derive(Debug)]
pub struct Slots {
    semaphore: Arc<Semaphore>,
    most: usize,
    state: Mutex<State>,
    /// A slot is free, so that the limit for requests ahead may have risen, too.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// How many there are now.
    limit: usize,
    /// How many of those that are taken are not given back when they are free.
    owed: usize,
    /// Answers since the limit changed.
    answers: usize,
    reduced: Option<Instant>,
    /// The limit for requests for batches that are not planned yet.
    ahead: Plateau,
    pacing: Pacing,
    in_flight: usize,
    most_in_flight: usize,
}

/// A slot that is taken until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    permit: Option<OwnedSemaphorePermit>,
    /// When it was taken, or its request was sent.
    taken: Instant,
    received: bool,
}

impl Slot {
    /// Waits until the request may be sent: not at once behind those before, but spread over the time that one takes. Memory allows `most`
    /// requests of its size in flight. (The limit for requests ahead does not count here, since batches that are planned do not heed it.)
    pub async fn paced(&mut self, most: usize) {
        let due = self.slots.lock().pacing.due(Instant::now());
        if let Some(due) = due {
            tokio::time::sleep_until(due.into()).await;
        }
        self.taken = Instant::now();
        self.slots.lock().pacing.sent(self.taken, most.min(self.slots.most));
    }

    /// Gives the slot back of a request whose answer has arrived to its last byte. Others, such as one that was not sent, or whose object is
    /// absent, do not tell how long a request takes.
    pub fn received(mut self) {
        self.received = true;
    }
}

impl Slots {
    /// A store has no time for all requests of a moment alike: that counts once.
    const MOMENT: Duration = Duration::from_millis(500);
    /// The least that the limit becomes.
    const LEAST: usize = 4;

    /// `most` slots, until a store has no time.
    pub fn new(most: usize) -> Arc<Self> {
        let most = most.max(1);
        let state = State {
            limit: most,
            owed: 0,
            answers: 0,
            reduced: None,
            ahead: Plateau::new(most),
            pacing: Pacing::default(),
            in_flight: 0,
            most_in_flight: 0,
        };
        let semaphore = Arc::new(Semaphore::new(most));
        Arc::new(Self { semaphore, most, state: Mutex::new(state), changed: Notify::new() })
    }

    /// Waits for a slot, behind all that waited before.
    pub async fn take(self: &Arc<Self>) -> Slot {
        // It is never closed, which would be an error.
        let permit = self.semaphore.clone().acquire_owned().await.ok();
        let mut state = self.lock();
        state.in_flight += 1;
        state.most_in_flight = state.most_in_flight.max(state.in_flight);
        drop(state);
        Slot { slots: self.clone(), permit, taken: Instant::now(), received: false }
    }

    /// Waits for a slot for a request for a batch that is not planned yet: until fewer are taken than is worth it, or the batch `is_planned`. Only one
    /// waits at a time.
    pub async fn take_ahead(self: &Arc<Self>, is_planned: impl Fn() -> bool) -> Slot {
        while !is_planned() && self.is_full_ahead() {
            self.changed.notified().await;
        }
        self.take().await
    }

    fn is_full_ahead(&self) -> bool {
        let mut state = self.lock();
        let is_full = state.in_flight >= state.ahead.limit();
        if is_full {
            state.ahead.note_full();
        }
        is_full
    }

    /// A store answered 503 or 429: the limit is halved.
    pub fn refused(&self, now: Instant) {
        let mut state = self.lock();
        if state.reduced.is_some_and(|last| now.saturating_duration_since(last) < Self::MOMENT) {
            return;
        }
        let limit = (state.limit / 2).max(Self::LEAST.min(self.most));
        let taken = self.semaphore.forget_permits(state.limit - limit);
        state.owed += state.limit - limit - taken;
        (state.limit, state.answers, state.reduced) = (limit, 0, Some(now));
    }

    /// An answer began. The limit rises by a sixteenth of `most` when each slot was answered once on average.
    pub fn answered(&self) {
        let mut state = self.lock();
        state.answers += 1;
        if state.limit == self.most || state.answers < state.limit {
            return;
        }
        let more = (self.most / 16).clamp(1, self.most - state.limit);
        let kept = more.min(state.owed);
        state.owed -= kept;
        self.semaphore.add_permits(more - kept);
        (state.limit, state.answers) = (state.limit + more, 0);
    }

    /// Whether the request that waits in [`Slots::take_ahead`] is planned is asked again.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// How many are taken now.
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight
    }

    /// The most that were taken at once.
    pub fn most_in_flight(&self) -> usize {
        self.lock().most_in_flight
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.lock();
        state.in_flight -= 1;
        if self.received {
            let time = self.taken.elapsed();
            state.ahead.ended(time);
            state.pacing.ended(time);
        }
        self.slots.changed.notify_one();
        if state.owed > 0
            && let Some(permit) = self.permit.take()
        {
            state.owed -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::executor::block_on;
    use proptest::prelude::*;

    fn take(slots: &Arc<Slots>) -> Option<Slot> {
        slots.take().now_or_never()
    }

    #[test]
    fn a_store_without_time_halves_the_limit_once_a_moment_and_answers_raise_it_again() {
        let slots = Slots::new(64);
        let mut taken: Vec<Slot> = (0..64).map(|_| block_on(slots.take())).collect();
        assert!(take(&slots).is_none());
        let now = Instant::now();
        (0..10).for_each(|_| slots.refused(now));
        slots.refused(now + Slots::MOMENT);
        // 16 may be in flight.
        taken.truncate(16);
        assert!(take(&slots).is_none() && slots.in_flight() == 16);
        taken.truncate(15);
        taken.push(take(&slots).unwrap());
        (0..16).for_each(|_| slots.answered());
        taken.extend((0..4).map(|_| take(&slots).unwrap()));
        assert!(take(&slots).is_none());
        // All of them again.
        (0..64 * 12).for_each(|_| slots.answered());
        taken.extend((20..64).map(|_| take(&slots).unwrap()));
        assert!(take(&slots).is_none() && slots.most_in_flight() == 64);
        // Never fewer than some.
        (0..20).for_each(|i| slots.refused(now + 10 * (i + 1) * Slots::MOMENT));
        taken.clear();
        assert_eq!(std::iter::from_fn(|| take(&slots).map(|slot| taken.push(slot))).count(), Slots::LEAST);
    }

    #[test]
    fn requests_ahead_leave_slots_to_others() {
        let slots = Slots::new(256);
        let ahead = || slots.take_ahead(|| false).now_or_never();
        let end = |mut slot: Slot| {
            slot.taken = Instant::now() - Duration::from_millis(100);
            slot.received();
        };
        let mut taken: Vec<Slot> = std::iter::from_fn(ahead).collect();
        assert_eq!(taken.len(), Plateau::LEAST);
        // One that waits gets the slot that is free next, and one that is planned meanwhile any.
        let planned = std::cell::Cell::new(false);
        let (first, second) = (slots.take_ahead(|| false), slots.take_ahead(|| planned.get()));
        let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
        assert!(first.as_mut().now_or_never().is_none());
        taken.pop().map(end);
        taken.push(block_on(first));
        assert!(second.as_mut().now_or_never().is_none());
        planned.set(true);
        slots.look_again();
        taken.extend([block_on(second), take(&slots).unwrap()]);
        taken.extend((taken.len()..256).map(|_| take(&slots).unwrap()));
        assert!(take(&slots).is_none() && ahead().is_none());
        // More of them are worth it where requests take as long as before. Those that were not sent do not count.
        for _ in 0..256 * 16 {
            end(taken.remove(0));
            taken.extend(std::iter::from_fn(ahead));
            drop(slots.take().now_or_never());
        }
        assert_eq!(taken.len(), 256);
    }

    #[test]
    fn requests_are_spread_over_the_time_of_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let slots = Slots::new(256);
            let mut slot = slots.take().await;
            assert!(slot.paced(8).now_or_never().is_some());
            slot.taken = Instant::now() - Duration::from_millis(100);
            slot.received();
            // One in 10 ms, but for what may be made up for.
            let began = Instant::now();
            for _ in 0..10 {
                slots.take().await.paced(8).await;
            }
            assert!(began.elapsed() > Duration::from_millis(70));
        });
    }

    proptest! {
        #[test]
        fn slots_are_neither_lost_nor_made(most in 1usize..40, steps in prop::collection::vec(0u8..4, 0..200)) {
            let slots = Slots::new(most);
            let (mut taken, start) = (vec![], Instant::now());
            for (number, step) in (0u32..).zip(&steps) {
                match step {
                    0 => taken.extend(take(&slots)),
                    1 => _ = taken.pop(),
                    2 => slots.refused(start + number * Slots::MOMENT),
                    _ => slots.answered(),
                }
                prop_assert!(taken.len() <= most && slots.in_flight() == taken.len());
            }
            taken.clear();
            let limit = slots.lock().limit;
            prop_assert!(limit <= most && limit >= Slots::LEAST.min(most));
            taken.extend(std::iter::from_fn(|| take(&slots)));
            prop_assert_eq!(taken.len(), limit);
        }
    }
}
