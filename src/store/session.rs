//! Requests of threads that wait for their answers, such as the one that opens a store.

use super::buffers::Buffers;
use super::connections::Connections;
use super::contract::{Extent, Head, Listing, Store, Version, read_part, read_whole};

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use once_cell::sync::OnceCell;
use tokio::runtime::{self, Runtime};

/// All bytes of an object and its version; `None` if it is absent.
pub type FileBytes = Option<(Vec<u8>, Version)>;

/// The most requests of one call that are in flight.
const AT_ONCE: usize = 32;

/// Sessions that share connections. Threads that wait for answers at the same time take turns in polling the requests of all of them.
pub struct Sessions {
    connections: Connections,
    runtime: OnceCell<Arc<Runtime>>,
}

/// A store with connections that are closed when this and the sessions that share them are dropped. No thread is left behind, so that a
/// process can fork afterwards.
pub struct Session {
    store: Arc<dyn Store>,
    /// Polls the requests of a store that has connections.
    runtime: Option<Arc<Runtime>>,
}

impl Sessions {
    /// Opens no connection yet. Requests that fail for a reason that may pass are repeated for as long as `retry_timeout`.
    pub fn new(retry_timeout: Duration) -> Self {
        let connections = Connections::new(retry_timeout, Arc::default(), Buffers::none());
        Self { connections, runtime: OnceCell::new() }
    }

    /// A session with a store.
    ///
    /// # Errors
    /// Clients and file descriptors that cannot be had.
    pub fn with(&self, store: &Arc<dyn Store>) -> io::Result<Session> {
        let Some(store) = store.connect(&self.connections)? else {
            return Ok(Session { store: store.clone(), runtime: None });
        };
        let build = || runtime::Builder::new_current_thread().enable_all().build().map(Arc::new);
        let runtime = self.runtime.get_or_try_init(build)?.clone();
        Ok(Session { store, runtime: Some(runtime) })
    }
}

impl Session {
    /// How long requests are repeated while a store is opened, so that an unreachable store is soon reported.
    pub const WHILE_OPENING: Duration = Duration::from_secs(15);
    /// The same while it is read: a training outlasts a server that is restarted.
    pub const WHILE_READING: Duration = Duration::from_secs(180);

    /// A session that shares no connections, as of [`Sessions::new`].
    ///
    /// # Errors
    /// As [`Sessions::with`].
    pub fn new(store: &Arc<dyn Store>, retry_timeout: Duration) -> io::Result<Self> {
        Sessions::new(retry_timeout).with(store)
    }

    /// All bytes of a small object, such as a metadata file, and its version. `None` if it is absent.
    ///
    /// # Errors
    /// What the store says, or [`Obstacle::TooLarge`] for more than `most_bytes`.
    pub fn read_whole(&self, key: &str, most_bytes: u64) -> io::Result<FileBytes> {
        self.wait(read_whole(&*self.store, key, most_bytes))
    }

    /// The same of several objects, in their order.
    pub fn read_each(&self, keys: &[String], most_bytes: u64) -> Vec<io::Result<FileBytes>> {
        let reads = futures::stream::iter(keys).map(|key| read_whole(&*self.store, key, most_bytes));
        self.wait(reads.buffered(AT_ONCE).collect())
    }

    /// The bytes of a part of an object, and what it is. `None` if it is absent.
    ///
    /// # Errors
    /// What the store says.
    pub fn read_part(&self, key: &str, extent: Extent) -> io::Result<Option<(Vec<u8>, Head)>> {
        self.wait(read_part(&*self.store, key, extent))
    }

    /// Length and version of an object. `None` if it is absent.
    ///
    /// # Errors
    /// What the store says.
    pub fn head(&self, key: &str) -> io::Result<Option<Head>> {
        self.wait(self.store.head(key))
    }

    /// What lies below a key.
    ///
    /// # Errors
    /// What the store says.
    pub fn list(&self, key: &str) -> io::Result<Listing> {
        self.wait(self.store.list(key))
    }

    /// What lies below several keys, in their order.
    pub fn list_each(&self, keys: &[String]) -> Vec<io::Result<Listing>> {
        let listings = futures::stream::iter(keys).map(|key| self.store.list(key));
        self.wait(listings.buffered(AT_ONCE).collect())
    }

    fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        match &self.runtime {
            Some(runtime) => runtime.block_on(request),
            None => futures::executor::block_on(request),
        }
    }
}
