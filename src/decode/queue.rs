//! A queue between threads that can be closed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// First in, first out, for any number of threads on both sides. How much is in it is bounded by who fills it: units
/// exist for submitted batches only.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    /// Since when there are some.
    since: Option<Instant>,
    /// Somebody waits for more of them, before all others.
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
    fn look_at_clock(&mut self) {
        match self.items.is_empty() {
            true => self.since = None,
            false => _ = self.since.get_or_insert_with(Instant::now),
        }
    }
}

impl<T> Queue<T> {
    /// Who waits for more looks again so often.
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

    /// Waits for an item and takes it with all that follow, as long as `fits` agrees. The first is always taken. Before that it
    /// waits for more of them while `patient` agrees, which is told for how long there have been some; others wait for its
    /// end. What does not fit has waited already. `None` once the queue is closed.
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
            // Those who were told of them found somebody else waiting.
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
        let mut room = 8;
        let mut take = |item: &i32| {
            room -= item;
            room >= 0
        };
        assert_eq!(queue.pop_group(|_| false, &mut take), Some(vec![5, 1, 2]));
        assert_eq!(queue.pop_group(|_| false, |_| false), Some(vec![9]));
        assert_eq!(queue.pop_group(|_| false, |_| true), Some(vec![1]));
    }

    #[test]
    fn who_is_patient_gets_what_comes_meanwhile_and_the_others_what_is_left() {
        let queue = std::sync::Arc::new(Queue::default());
        let patient = std::thread::spawn({
            let queue = queue.clone();
            // Until the third item is there.
            move || queue.pop_group(|_| queue.lock().items.len() < 3, |&item| item < 3)
        });
        queue.push([1]);
        while !queue.lock().gathers {
            std::thread::yield_now();
        }
        let other = std::thread::spawn({
            let queue = queue.clone();
            let has_waited = |waited| {
                assert!(waited >= Duration::from_millis(5), "what is left over has waited with the others");
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
    fn closing_wakes_who_waits_and_drops_the_rest() {
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
