//! The connections of one thread to the stores that it asks.

use super::buffers::Buffers;
use super::traffic::Traffic;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::ObjectStore;

/// Clients of buckets and web servers, each made once for all stores in it. Connections belong to the runtime that polls them, so that each
/// runtime has its own.
#[derive(Clone)]
pub struct Connections {
    /// How long a request that fails for a reason that may pass is repeated.
    pub retry_timeout: Duration,
    /// Is told what fails and is sent again.
    pub traffic: Arc<Traffic>,
    /// Memory for bodies.
    pub buffers: Arc<Buffers>,
    clients: Arc<Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of clients have secrets in them.
        f.debug_struct("Connections").field("retry_timeout", &self.retry_timeout).finish_non_exhaustive()
    }
}

impl Connections {
    /// None yet. Bodies go to memory of `buffers`.
    pub fn new(retry_timeout: Duration, traffic: Arc<Traffic>, buffers: Arc<Buffers>) -> Self {
        Self { retry_timeout, traffic, buffers, clients: Arc::default() }
    }

    /// The client of that name, which is made if there is none.
    pub(super) fn client(
        &self,
        name: &str,
        make: impl FnOnce() -> object_store::Result<Arc<dyn ObjectStore>>,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(name) {
            return Ok(client.clone());
        }
        let client = make()?;
        clients.insert(name.into(), client.clone());
        Ok(client)
    }

    /// Of a test: nothing is repeated and no memory kept.
    #[cfg(test)]
    pub(super) fn without_retries() -> Self {
        Self::new(Duration::ZERO, Arc::default(), Buffers::none())
    }

    /// How many clients there are.
    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
