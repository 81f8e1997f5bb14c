//! Connections that wait for the next request to their server.

use super::socket::Socket;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections that wait for the next request.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Idle>>);

#[derive(Debug)]
struct Idle {
    origin: Arc<str>,
    socket: Socket,
    since: Instant,
}

/// Where a connection goes when an answer has come.
pub(super) struct Home {
    pub pool: Arc<Pool>,
    /// Scheme, host and port.
    pub origin: Arc<str>,
}

impl Home {
    /// Keeps the connection for the next request.
    pub fn park(self, socket: Socket) {
        let mut idle = self.pool.lock();
        idle.retain(|idle| idle.since.elapsed() < Pool::IDLE_TIMEOUT);
        idle.push(Idle { origin: self.origin, socket, since: Instant::now() });
    }
}

impl Pool {
    /// So long a connection waits.
    const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

    /// A connection that can be used at once, the one that waits for the shortest time.
    pub fn take(&self, origin: &str) -> Option<Socket> {
        let mut idle = self.lock();
        while let Some(place) = idle.iter().rposition(|idle| &*idle.origin == origin) {
            let Idle { mut socket, since, .. } = idle.remove(place);
            if since.elapsed() < Self::IDLE_TIMEOUT && socket.is_quiet() {
                return Some(socket);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
