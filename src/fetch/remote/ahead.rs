//! Read chunks of batches that are not planned yet.

use super::{Recipient, Remote, Wanted};
use crate::error::Error;
use crate::fetch::ahead::{Ahead, Claim, Found};
use crate::fetch::lengths::Known;
use crate::fetch::locate::Located;
use crate::plan::Dims;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

impl<C: Send + 'static> Remote<C> {
    /// Of the memory for answers, chunks that no batch has claimed take at most one part in this many.
    pub(super) const AHEAD_SHARE: u64 = 2;
    /// The most read chunks that are asked for ahead.
    const MOST_AHEAD: usize = 4096;

    /// All chunks of a batch, and of those before it, were asked for with [`Remote::fetch`]: what else was fetched for them is dropped.
    pub fn planned(&self, batch: u64) {
        let dropped = self.lock_ahead().planned(batch);
        drop(dropped);
    }

    /// Asks for read chunks that a later batch will want, as far as there is memory for them. They wait until [`Remote::fetch`] asks for them.
    /// Returns whether there was memory for all.
    pub fn fetch_ahead(&self, batch: u64, cells: impl IntoIterator<Item = ((usize, usize), Dims)>) -> bool {
        let (mut asked, mut fits) = (vec![], true);
        let mut ahead = self.lock_ahead();
        for (part, cell) in cells {
            let (bytes, count) = ahead.size();
            let usual_bytes = self.usual_bytes(part);
            let is_full = bytes >= self.most_ahead_bytes || count >= Self::MOST_AHEAD;
            // Inner chunks that can be asked for together are.
            let joins = || {
                bytes + usual_bytes <= self.most_ahead_bytes + self.most_joined_bytes
                    && count < 2 * Self::MOST_AHEAD
                    && asked.last().is_some_and(|last| self.share_object(last, part, &cell))
            };
            if is_full && !joins() {
                fits = false;
                break;
            }
            if ahead.ask(batch, (part, cell.clone()), usual_bytes) {
                asked.push(Wanted { chunk: Recipient::Cell((part, cell.clone())), part, cell });
            }
        }
        drop(ahead);
        self.fetch_or_find(batch, asked, self.disk_cache.as_ref());
        fits
    }

    /// Whether two read chunks are inner chunks of one sharded chunk.
    fn share_object(&self, one: &Wanted<Recipient<C>>, part: (usize, usize), cell: &Dims) -> bool {
        let sharding = self.dataset.part(part.0, part.1).sharding.as_ref();
        one.part == part
            && sharding.is_some_and(|sharding| sharding.chunk_of(&one.cell) == sharding.chunk_of(cell))
    }

    /// Hands over what was fetched ahead of what a batch wants, now or when it arrives. Returns what was not.
    pub(super) fn claim(
        &self,
        batch: u64,
        wanted: impl IntoIterator<Item = Wanted<C>>,
    ) -> Vec<Wanted<Recipient<C>>> {
        self.planned.fetch_max(batch, Ordering::Relaxed);
        let (mut unknown, mut arrived) = (vec![], vec![]);
        let mut ahead = self.lock_ahead();
        for Wanted { chunk, part, cell } in wanted {
            let cell = (part, cell);
            match ahead.claim(batch, &cell, chunk) {
                Claim::None(chunk) => {
                    unknown.push(Wanted { chunk: Recipient::Chunk(chunk), part, cell: cell.1 });
                }
                Claim::Ask => {
                    unknown.push(Wanted { chunk: Recipient::Cell(cell.clone()), part, cell: cell.1 })
                }
                Claim::Coming => {}
                Claim::Arrived(chunk, found) => arrived.push((chunk, found)),
            }
        }
        drop(ahead);
        for (chunk, found) in arrived {
            self.deliver(chunk, *found);
        }
        // A request of this batch that waits for memory may take that of later batches from now on.
        self.scheduler.get().iter().for_each(|scheduler| scheduler.look_again());
        unknown
    }

    /// Hands over what was found for a chunk that a batch has asked for or claimed.
    fn deliver(&self, chunk: C, found: Found) {
        if let Ok((Located::At { blob, .. }, _)) = &found {
            self.counters.bytes_fetched_useful.add(blob.fetched_bytes());
        }
        self.arrive.arrived(chunk, found);
    }

    /// Hands over what was found for a read chunk, to the batches that have claimed it if it was asked for by its cell.
    pub(super) fn hand_over(&self, recipient: Recipient<C>, found: Found) {
        let cell = match recipient {
            Recipient::Chunk(chunk) => return self.deliver(chunk, found),
            Recipient::Cell(cell) => cell,
        };
        let Some((claims, found)) = self.lock_ahead().arrived(&cell, found) else {
            // A request that waits for memory can have that of this one.
            self.scheduler.get().iter().for_each(|scheduler| scheduler.look_again());
            return;
        };
        let mut chunks = claims.into_iter();
        let Some(first) = chunks.next() else { return };
        if chunks.len() == 0 {
            return self.deliver(first, found);
        }
        let found = found.map_err(Arc::new);
        let copy = || match &found {
            Ok((located, at)) => Ok((located.clone(), at.clone())),
            Err(error) => Err(Error::Sticky(error.clone())),
        };
        // The first batch is needed first, and what it takes is useful once.
        self.deliver(first, copy());
        chunks.for_each(|chunk| self.arrive.arrived(chunk, copy()));
    }

    /// Gives memory back that chunks of batches behind this one hold, if this one is planned and they are not. Returns whether it did.
    pub(super) fn give_back(&self, batch: u64) -> bool {
        if !self.is_planned(batch) {
            return false;
        }
        let given_back = self.lock_ahead().give_back(batch);
        !given_back.is_empty()
    }

    /// Whether chunks of a batch are wanted now, by a batch that is planned.
    pub(super) fn is_planned(&self, batch: u64) -> bool {
        batch <= self.planned.load(Ordering::Relaxed)
    }

    /// Encoded bytes of a read chunk, as far as it is known.
    fn usual_bytes(&self, part: (usize, usize)) -> u64 {
        match self.lengths.of(part) {
            Some(Known { count, sum, .. }) => sum / count,
            None => {
                let array = self.dataset.part(part.0, part.1);
                array.codec.encoded_bound.unwrap_or_else(|| array.read_chunk_bytes())
            }
        }
    }

    pub(super) fn lock_ahead(&self) -> MutexGuard<'_, Ahead<C>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
