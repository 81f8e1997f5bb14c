//! Reads encoded bytes: a trait, its backends, and the search for a read chunk's place in its file.

mod ahead;
mod coalesce;
pub mod cufile;
mod disk_cache;
mod encoded;
mod fetched;
mod gds;
mod hedging;
mod indexes;
mod lengths;
mod locate;
mod posix;
mod remote;
pub mod request;
mod resolve;
pub mod scheduler;
mod slots;
mod transfer;

pub use disk_cache::DiskCache;
pub use encoded::Encoded;
pub use gds::Gds;
pub use indexes::kept_indexes;
pub use locate::{Located, Locator};
pub use posix::Posix;
pub use remote::{Arrive, Remote, Settings, Wanted};
pub(crate) use resolve::{decode_index, resolve};
pub use slots::Slots;

use crate::store::Folder;

use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Where the bytes of store keys come from.
pub trait Fetch: Send + Sync {
    /// Opens what a key names in a folder. `None` if there is nothing; anything else that stands in the way is
    /// an error, so that only what is truly absent counts as a missing chunk.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, folder: &Folder, key: &str) -> io::Result<Option<Arc<dyn Blob>>>;
}

/// The bytes of one store key.
pub trait Blob: Send + Sync {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that changes when the bytes do.
    fn version(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` if the bytes end before.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Checks that nobody wrote to them since they were opened; done by [`Blob::read_at`].
    ///
    /// # Errors
    /// What the system says, or that somebody did.
    fn check_unchanged(&self) -> io::Result<()>;

    /// Whether a range can be read without waiting for storage, as far as that can be known.
    fn is_cached(&self, _range: &Range<u64>) -> bool {
        true
    }

    /// Announces that a range will be read soon.
    fn will_need(&self, _range: Range<u64>) {}

    /// Whether the object may stay open between [`Blob::will_need`] and the read.
    fn may_stay_open(&self) -> bool {
        true
    }

    /// What cuFile reads the bytes with, if it does.
    fn cufile(&self) -> Option<&cufile::Handle> {
        None
    }

    /// Whether the bytes are in the cache on the local disk: if they cannot be read or decoded there, the store has them still.
    fn is_in_disk_cache(&self) -> bool {
        false
    }

    /// How many bytes were fetched from a store at a URL for this chunk. Bytes that chunks of one answer share count for one of them.
    fn fetched_bytes(&self) -> u64 {
        0
    }

    /// The bytes of a range, piece by piece, if they are in memory for as long as this blob lives.
    fn in_memory(&self, _range: &Range<u64>) -> Option<Vec<&[u8]>> {
        None
    }

    /// Identifies the answer of a store at a URL that holds the bytes in memory, which chunks that were asked for together share.
    fn answer_id(&self) -> Option<usize> {
        None
    }

    /// Deletes the entry of the cache on the local disk that holds the bytes, if one does.
    fn discard(&self) {}
}
