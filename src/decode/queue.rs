//! A queue between threads that can be closed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A first-in, first-out queue for any number of producers and consumers. It has no bound of its own: producers only push units of
/// submitted batches, and the number of these is bounded.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    /// Since when there have been items.
    since: Option<Instant>,
    /// Whether a consumer is waiting for more items to take together. The other consumers wait until it has taken them.
    gathers: bool,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = State { items: VecDeque::new(), since: None, gathers: false, closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T> State<T> {
    /// Updates `since` after items were added or taken.
    fn look_at_clock(&mut self) {
        match self.items.is_empty() {
            true => self.since = None,
            false => _ = self.since.get_or_insert_with(Instant::now),
        }
    }
}

impl<T> Queue<T> {
    /// A consumer that waits for more items asks again after this time.
    const GLANCE: Duration = Duration::from_millis(1);

    /// Adds items at the end. They are dropped if the queue is closed.
    pub fn push(&self, items: impl IntoIterator<Item = T>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let before = state.items.len();
        state.items.extend(items);
        state.look_at_clock();
        match state.items.len() - before {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Adds items in front of all others, in their order. They are dropped if the queue is closed.
    pub fn push_front(&self, items: impl DoubleEndedIterator<Item = T>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        items.rev().for_each(|item| state.items.push_front(item));
        state.look_at_clock();
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for an item, then takes the items from the front for which `fits` returns true, and always the first one. Returns
    /// `None` once the queue is closed.
    ///
    /// Before it takes items, it waits for more of them as long as `patient` returns true. `patient` gets the time since the
    /// queue was last empty. Items that do not fit are not waited for a second time.
    pub fn pop_group(
        &self,
        patient: impl Fn(Duration) -> bool,
        mut fits: impl FnMut(&T) -> bool,
    ) -> Option<Vec<T>> {
        let mut state = self.lock();
        while !state.closed && (state.items.is_empty() || state.gathers) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.gathers = true;
        while !state.closed {
            let since = state.since.unwrap_or_else(Instant::now);
            drop(state);
            let waits = patient(since.elapsed());
            if waits {
                std::thread::sleep(Self::GLANCE);
            }
            state = self.lock();
            if !waits {
                break;
            }
        }
        state.gathers = false;
        let first = state.items.pop_front().filter(|_| !state.closed)?;
        fits(&first);
        let mut group = vec![first];
        while state.items.front().is_some_and(&mut fits) {
            group.extend(state.items.pop_front());
        }
        state.look_at_clock();
        if !state.items.is_empty() {
            // Consumers that were notified of these items went back to waiting, because this one was gathering.
            self.changed.notify_one();
        }
        Some(group)
    }

    /// Ends all waiting and drops what is queued.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.changed.notify_all();
        drop(items);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_end_where_the_next_item_does_not_fit() {
        let queue = Queue::default();
        queue.push([5, 1, 2, 9, 1]);
        let mut space = 8;
        let mut take = |item: &i32| {
            space -= item;
            space >= 0
        };
        assert_eq!(queue.pop_group(|_| false, &mut take), Some(vec![5, 1, 2]));
        assert_eq!(queue.pop_group(|_| false, |_| false), Some(vec![9]));
        assert_eq!(queue.pop_group(|_| false, |_| true), Some(vec![1]));
    }

    #[test]
    fn a_patient_consumer_gets_the_items_that_come_meanwhile_and_the_others_the_rest() {
        let queue = std::sync::Arc::new(Queue::default());
        let patient = std::thread::spawn({
            let queue = queue.clone();
            // Waits until the third item is in the queue.
            move || queue.pop_group(|_| queue.lock().items.len() < 3, |&item| item < 3)
        });
        queue.push([1]);
        while !queue.lock().gathers {
            std::thread::yield_now();
        }
        let other = std::thread::spawn({
            let queue = queue.clone();
            let has_waited = |waited| {
                assert!(
                    waited >= Duration::from_millis(5),
                    "the item that is left has waited together with the others"
                );
                false
            };
            move || queue.pop_group(has_waited, |_| true)
        });
        std::thread::sleep(Duration::from_millis(5));
        queue.push([2]);
        queue.push([3]);
        assert_eq!(patient.join().unwrap(), Some(vec![1, 2]));
        assert_eq!(other.join().unwrap(), Some(vec![3]));
    }

    #[test]
    fn closing_ends_patience() {
        let queue = std::sync::Arc::new(Queue::default());
        queue.push([1]);
        let patient = std::thread::spawn({
            let queue = queue.clone();
            move || queue.pop_group(|_| true, |_| true)
        });
        while !queue.lock().gathers {
            std::thread::yield_now();
        }
        queue.close();
        assert_eq!(patient.join().unwrap(), None);
    }

    #[test]
    fn closing_wakes_waiting_consumers_and_drops_the_items() {
        let queue = std::sync::Arc::new(Queue::<u8>::default());
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.pop_group(|_| false, |_| true)
        });
        queue.close();
        assert_eq!(waiting.join().unwrap(), None);
        queue.push([1]);
        assert_eq!(queue.pop_group(|_| false, |_| true), None);
    }
}
