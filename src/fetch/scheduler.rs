//! Requests to stores that are not files of this machine: hundreds in flight on a few threads.
//!
//! ```text
//! request() --> queue --> admission: memory, then a request slot, in the order of the queue --> one of the network threads --> delivered()
//! ```
//!
//! Memory for the answer is reserved before a request is sent and given back when its bytes are dropped. Requests are admitted in the order
//! in which they were made.

use crate::error::Obstacle;
use crate::memory;
use crate::store::{Connections, Extent, Head, Session, Store, Version};

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// What is asked for.
#[derive(Debug)]
pub struct Request {
    /// Of which store.
    pub store: Arc<dyn Store>,
    /// Key of the object.
    pub key: String,
    /// Which of its bytes.
    pub extent: Extent,
    /// The version that the object has to have, if an earlier answer told it.
    pub version: Option<Version>,
    /// Bytes that the answer will probably have. Memory is reserved for them before the request is sent.
    pub expected_bytes: u64,
    /// The most bytes that the answer can have.
    pub most_bytes: u64,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Received {
    /// The bytes that were asked for.
    pub bytes: Vec<u8>,
    /// Where they are in the object.
    pub range: Range<u64>,
    /// The object.
    pub head: Head,
    /// Given back with the bytes.
    _memory: OwnedSemaphorePermit,
}

/// Gets the answers, on a network thread: it must not wait.
pub trait Deliver<T>: Send + Sync {
    /// The answer to the request that was made with `ticket`; `None` if the object is absent.
    fn delivered(&self, ticket: T, answer: io::Result<Option<Received>>);
}

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads that poll requests.
    pub threads: usize,
    /// Requests in flight at once.
    pub requests: usize,
    /// Bytes of answers that are in flight or were delivered and not dropped yet.
    pub bytes: u64,
}

/// Sends requests, each with a ticket that comes back with the answer. Dropping it drops the requests that are not answered yet.
pub struct Scheduler<T> {
    queue: mpsc::UnboundedSender<(Request, Waiting<T>)>,
    deliver: Arc<dyn Deliver<T>>,
    stopping: Arc<AtomicBool>,
    threads: Vec<(mpsc::UnboundedSender<Message<T>>, JoinHandle<()>)>,
    in_flight: Arc<InFlight>,
}

/// How many requests are in flight.
#[derive(Debug, Default)]
struct InFlight {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// What a network thread is told.
enum Message<T> {
    Send(Admitted<T>),
    Stop,
}

/// A ticket that waits for its answer. It is answered with an error if it is dropped before, unless the scheduler stops.
struct Waiting<T> {
    ticket: Option<T>,
    deliver: Arc<dyn Deliver<T>>,
    stopping: Arc<AtomicBool>,
}

impl<T> Waiting<T> {
    fn answer(mut self, answer: io::Result<Option<Received>>) {
        if let Some(ticket) = self.ticket.take() {
            self.deliver.delivered(ticket, answer);
        }
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        let ticket = self.ticket.take().filter(|_| !self.stopping.load(Ordering::Relaxed));
        if let Some(ticket) = ticket {
            self.deliver
                .delivered(ticket, Err(io::Error::other("a network thread ended before the answer came")));
        }
    }
}

/// A request that may be sent now.
struct Admitted<T> {
    request: Request,
    ticket: Waiting<T>,
    memory: OwnedSemaphorePermit,
    slot: OwnedSemaphorePermit,
}

/// Memory is counted in units of this many bytes, because a semaphore counts in 32 bits.
const UNIT_BYTES: u64 = 4096;

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

impl<T: Send + 'static> Scheduler<T> {
    /// Starts the network threads.
    ///
    /// # Errors
    /// Threads that cannot be had.
    pub fn new(limits: Limits, deliver: Arc<dyn Deliver<T>>) -> io::Result<Self> {
        let in_flight = Arc::<InFlight>::default();
        let mut threads = vec![];
        let (queue, requests) = mpsc::unbounded_channel();
        let mut admission = Some(requests);
        let mut senders = vec![];
        let mut receivers = vec![];
        for _ in 0..limits.threads.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel();
            senders.push(sender);
            receivers.push(receiver);
        }
        for (sender, receiver) in senders.clone().into_iter().zip(receivers) {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let admitted = Network { receiver, in_flight: in_flight.clone() };
            // The first thread admits requests, too.
            let admission = admission.take().map(|requests| admit(requests, senders.clone(), limits));
            let work = move || {
                runtime.block_on(async move {
                    if let Some(admission) = admission {
                        tokio::spawn(admission);
                    }
                    admitted.run().await;
                });
            };
            threads.push((sender, std::thread::Builder::new().name("zarr net".into()).spawn(work)?));
        }
        Ok(Self { queue, deliver, stopping: Arc::default(), threads, in_flight })
    }

    /// Queues a request behind all others.
    pub fn request(&self, request: Request, ticket: T) {
        let waiting =
            Waiting { ticket: Some(ticket), deliver: self.deliver.clone(), stopping: self.stopping.clone() };
        // If the threads are gone, the drop of what is sent says so.
        let _ = self.queue.send((request, waiting));
    }

    /// The most requests that were in flight at once.
    pub fn most_in_flight(&self) -> usize {
        self.in_flight.most.load(Ordering::Relaxed)
    }
}

/// Reserves memory and a slot for one request after the other, and hands it to the next thread.
async fn admit<T>(
    mut requests: mpsc::UnboundedReceiver<(Request, Waiting<T>)>,
    threads: Vec<mpsc::UnboundedSender<Message<T>>>,
    limits: Limits,
) {
    let all_units = units(limits.bytes).max(1);
    let memory = Arc::new(Semaphore::new(all_units as usize));
    let slots = Arc::new(Semaphore::new(limits.requests.max(1)));
    let mut threads = threads.iter().cycle();
    while let Some((request, ticket)) = requests.recv().await {
        // An answer that is larger than all memory is waited for alone.
        let wanted = units(request.expected_bytes).clamp(1, all_units);
        let (Ok(memory), Ok(slot)) =
            (memory.clone().acquire_many_owned(wanted).await, slots.clone().acquire_owned().await)
        else {
            return;
        };
        let admitted = Admitted { request, ticket, memory, slot };
        if threads.next().is_none_or(|thread| thread.send(Message::Send(admitted)).is_err()) {
            return;
        }
    }
}

/// What a network thread has.
struct Network<T> {
    receiver: mpsc::UnboundedReceiver<Message<T>>,
    in_flight: Arc<InFlight>,
}

impl<T: Send + 'static> Network<T> {
    /// Polls requests until the scheduler is dropped.
    async fn run(mut self) {
        let connections = Connections::new(Session::WHILE_READING);
        let mut clients = Clients { connections, by_address: HashMap::new() };
        while let Some(Message::Send(admitted)) = self.receiver.recv().await {
            let Admitted { mut request, ticket, memory, slot } = admitted;
            let in_flight = self.in_flight.clone();
            match clients.of(&request.store) {
                Ok(client) => request.store = client,
                Err(error) => {
                    ticket.answer(Err(error));
                    continue;
                }
            }
            tokio::spawn(async move {
                let now = in_flight.now.fetch_add(1, Ordering::Relaxed) + 1;
                in_flight.most.fetch_max(now, Ordering::Relaxed);
                let answer = receive(&request, memory).await;
                in_flight.now.fetch_sub(1, Ordering::Relaxed);
                drop(slot);
                ticket.answer(answer);
            });
        }
    }
}

/// The stores of one thread with its connections, by their addresses: a connection is best polled by the thread that uses it.
struct Clients {
    connections: Connections,
    by_address: HashMap<*const (), Client>,
}

struct Client {
    /// Keeps the address of the store its own.
    _store: Arc<dyn Store>,
    client: Arc<dyn Store>,
}

impl Clients {
    fn of(&mut self, store: &Arc<dyn Store>) -> io::Result<Arc<dyn Store>> {
        let address = Arc::as_ptr(store).cast::<()>();
        if let Some(known) = self.by_address.get(&address) {
            return Ok(known.client.clone());
        }
        let client = store.connect(&self.connections)?.unwrap_or_else(|| store.clone());
        self.by_address.insert(address, Client { _store: store.clone(), client: client.clone() });
        Ok(client)
    }
}

/// Sends a request and waits for all of its bytes.
async fn receive(request: &Request, mut memory: OwnedSemaphorePermit) -> io::Result<Option<Received>> {
    let Request { store, key, extent, version, most_bytes, .. } = request;
    let Some(body) = store.get(key, extent.clone(), version.as_ref()).await? else { return Ok(None) };
    let range = body.range.clone();
    let length = range.end - range.start;
    if length > *most_bytes {
        return Err(Obstacle::LongerThanEncoded { bytes: length, most_bytes: *most_bytes }.into());
    }
    // What was reserved beyond the length, which is known now, is for others.
    let excess = memory.num_permits().saturating_sub(units(length).max(1) as usize);
    drop(memory.split(excess));
    let mut bytes = vec![];
    memory::reserve(&mut bytes, length).map_err(io::Error::other)?;
    let head = body.read_to(&mut bytes).await?;
    Ok(Some(Received { bytes, range, head, _memory: memory }))
}

impl<T> Drop for Scheduler<T> {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        for (thread, _) in &self.threads {
            let _ = thread.send(Message::Stop);
        }
        let current = std::thread::current().id();
        // One of its own threads can be what drops it, with the last answer.
        for (_, handle) in self.threads.drain(..).filter(|(_, handle)| handle.thread().id() != current) {
            // Its runtime drops the requests that it still polls.
            let _ = handle.join();
        }
    }
}
