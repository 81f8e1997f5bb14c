//! Chunks that both the CPU and the GPU could decode.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Chunks that both sides could decode, in the order in which they are needed.
#[derive(Debug)]
pub struct Backlog<T> {
    /// What the CPU keeps.
    near: VecDeque<(T, u64)>,
    far: VecDeque<(T, u64)>,
    near_bytes: u64,
    bytes: u64,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self { near: VecDeque::new(), far: VecDeque::new(), near_bytes: 0, bytes: 0 }
    }
}

impl<T> Backlog<T> {
    /// Adds a chunk of `bytes` decoded bytes behind all others.
    pub fn push(&mut self, item: T, bytes: u64) {
        self.bytes += bytes;
        self.far.push_back((item, bytes));
    }

    /// Decoded bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next chunk for the CPU.
    pub fn for_cpu(&mut self) -> Option<T> {
        let near = self.near.pop_front().inspect(|(_, bytes)| self.near_bytes -= bytes);
        near.or_else(|| self.far.pop_front()).map(|chunk| self.without(chunk))
    }

    /// The next chunk for the GPU behind those that the CPU keeps, which have `reserve` bytes.
    pub fn for_gpu(&mut self, reserve: u64) -> Option<T> {
        while let Some(&(_, bytes)) = self.near.back()
            && self.near_bytes - bytes >= reserve
        {
            self.near_bytes -= bytes;
            let back = self.near.pop_back();
            back.into_iter().for_each(|job| self.far.push_front(job));
        }
        while self.near_bytes < reserve
            && let Some((item, bytes)) = self.far.pop_front()
        {
            self.near_bytes += bytes;
            self.near.push_back((item, bytes));
        }
        self.far.pop_front().map(|chunk| self.without(chunk))
    }

    fn without(&mut self, (item, bytes): (T, u64)) -> T {
        self.bytes -= bytes;
        item
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty()
    }

    /// Removes everything.
    pub fn take(self) -> impl Iterator<Item = T> {
        self.near.into_iter().chain(self.far).map(|(item, _)| item)
    }
}
