//! A queue between threads that can be closed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A first-in, first-out queue for any number of producers and consumers. It has no bound of its own: producers only push units of
/// submitted batches, and the number of these is bounded.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = State { items: VecDeque::new(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    /// Adds items at the end. They are dropped if the queue is closed.
    pub fn push(&self, items: impl IntoIterator<Item = T>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let before = state.items.len();
        state.items.extend(items);
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
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for an item, then takes the items from the front for which `fits` returns true, and always the first one. Returns
    /// `None` once the queue is closed.
    pub fn pop_group(&self, mut fits: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
        let mut state = self.lock();
        while !state.closed && state.items.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let first = state.items.pop_front().filter(|_| !state.closed)?;
        fits(&first);
        let mut group = vec![first];
        while state.items.front().is_some_and(&mut fits) {
            group.extend(state.items.pop_front());
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
        assert_eq!(queue.pop_group(&mut take), Some(vec![5, 1, 2]));
        assert_eq!(queue.pop_group(|_| false), Some(vec![9]));
        assert_eq!(queue.pop_group(|_| true), Some(vec![1]));
    }

    #[test]
    fn closing_wakes_waiting_consumers_and_drops_the_items() {
        let queue = std::sync::Arc::new(Queue::<u8>::default());
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.pop_group(|_| true)
        });
        queue.close();
        assert_eq!(waiting.join().unwrap(), None);
        queue.push([1]);
        assert_eq!(queue.pop_group(|_| true), None);
    }
}
