//! Requests to stores that are not files of this machine: hundreds in flight on a few threads.
//!
//! ```text
//! request() --> queue --> admission: memory, a request slot and its time, for the most urgent --> one of the network threads --> delivered()
//!                                           the other parts of a large answer, a slot for each --> the next ones --> that thread
//! ```
//!
//! Memory for the answer is reserved before a request is sent and given back when its bytes are dropped. The most urgent request is that of
//! the earliest batch, and of one batch that which was made first. Memory is reserved for no other, so that the earliest batch always goes on.

use super::hedging::Hedging;
use super::request::{Received, Request};
use super::slots::{Slot, Slots};
use super::transfer::{Client, Common, PartRequest, Stopped, THREAD_ENDED, Transfer, units};
use crate::stats::Counters;
use crate::store::{Buffers, Connections, Session, Store};

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use futures::future::{Either, poll_immediate, select};
use tokio::runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

/// Gets the answers, on a network thread: it must not wait.
pub trait Deliver<T>: Send + Sync {
    /// The answer to the request that was made with `ticket`; `None` if the object is absent.
    fn delivered(&self, ticket: T, answer: io::Result<Option<Received>>);

    /// Whether this batch is planned. Others have fewer requests in flight.
    fn is_planned(&self, batch: u64) -> bool;

    /// Memory for a request of this batch is missing. Drops an answer that is needed later, and returns whether there was one.
    fn give_back(&self, batch: u64) -> bool;
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
    /// Answers of more bytes are fetched in parts.
    pub split_above_bytes: u64,
}

/// Sends requests, each with a ticket that comes back with the answer. Dropping it drops the requests that are not answered yet.
pub struct Scheduler<T> {
    queue: Arc<Queue<T>>,
    deliver: Arc<dyn Deliver<T>>,
    stopping: Arc<AtomicBool>,
    threads: Vec<(mpsc::UnboundedSender<Message<T>>, JoinHandle<()>)>,
    slots: Arc<Slots>,
}

/// What a network thread is told.
enum Message<T> {
    Send(Box<Admitted<T>>),
    Part(Box<PartRequest>),
    Stop,
}

/// The network threads, which get requests in turn.
struct Threads<T> {
    senders: Vec<mpsc::UnboundedSender<Message<T>>>,
    next: AtomicUsize,
}

impl<T> Threads<T> {
    /// Hands a message to the next thread. Returns whether the thread is there.
    fn send(&self, message: Message<T>) -> bool {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len().max(1);
        self.senders.get(number).is_some_and(|thread| thread.send(message).is_ok())
    }
}

/// A ticket that waits for its answer. It is answered with an error if it is dropped before, unless the scheduler stops.
struct Waiting<T> {
    ticket: Option<T>,
    deliver: Arc<dyn Deliver<T>>,
    stopping: Arc<AtomicBool>,
}

impl<T> Waiting<T> {
    fn answer(mut self, answer: io::Result<Option<Received>>) {
        if let Some(ticket) = self.take() {
            self.deliver.delivered(ticket, answer);
        }
    }

    /// The ticket; `None` while the scheduler stops, because an error may only mean then that another thread stopped with a part of the answer.
    fn take(&mut self) -> Option<T> {
        self.ticket.take().filter(|_| !self.stopping.load(Ordering::Relaxed))
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.take() {
            self.deliver.delivered(ticket, Err(io::Error::other(THREAD_ENDED)));
        }
    }
}

/// A request that may be sent now.
struct Admitted<T> {
    request: Request,
    ticket: Waiting<T>,
    memory: OwnedSemaphorePermit,
    slot: Slot,
}

/// Requests that wait for memory and a slot.
struct Queue<T> {
    state: Mutex<Queued<T>>,
    changed: Notify,
}

struct Queued<T> {
    /// By urgency.
    requests: BTreeMap<Urgency, (Request, Waiting<T>)>,
    made: u64,
    closed: bool,
}

/// Batch and number of a request. The least is the most urgent.
type Urgency = (u64, u64);

impl<T> Queue<T> {
    fn new() -> Arc<Self> {
        let state = Queued { requests: BTreeMap::new(), made: 0, closed: false };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    fn push(&self, request: Request, ticket: Waiting<T>) {
        let mut state = self.lock();
        if state.closed {
            // The ticket says so when it is dropped, and whoever hears it may ask for more.
            drop(state);
            return drop(ticket);
        }
        state.made += 1;
        let urgency = (request.batch, state.made);
        state.requests.insert(urgency, (request, ticket));
        drop(state);
        self.changed.notify_one();
    }

    /// The most urgent request, and the memory that is expected to be needed.
    fn first(&self) -> Option<(Urgency, u64)> {
        let state = self.lock();
        let (urgency, (request, _)) = state.requests.first_key_value()?;
        Some((*urgency, request.expected_bytes))
    }

    /// The result of `reserving` for the request that is the most urgent one; `None` if a more urgent one comes first. Whenever `reserving`
    /// has to wait, `give_back` is called until it returns false.
    async fn reserved<R>(
        &self,
        urgency: Urgency,
        reserving: impl Future<Output = R>,
        give_back: impl Fn() -> bool,
    ) -> Option<R> {
        let is_first = || self.first().is_some_and(|(first, _)| first == urgency);
        let mut reserving = pin!(reserving);
        loop {
            let mut reserved = poll_immediate(reserving.as_mut()).await;
            while reserved.is_none() && give_back() {
                reserved = poll_immediate(reserving.as_mut()).await;
            }
            if let Some(reserved) = reserved {
                return Some(reserved).filter(|_| is_first());
            }
            match select(reserving.as_mut(), pin!(self.changed.notified())).await {
                Either::Left((reserved, _)) => return Some(reserved).filter(|_| is_first()),
                Either::Right(_) if is_first() => {}
                Either::Right(_) => return None,
            }
        }
    }

    fn take(&self, urgency: Urgency) -> Option<(Request, Waiting<T>)> {
        self.lock().requests.remove(&urgency)
    }

    fn lock(&self) -> MutexGuard<'_, Queued<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes a queue when it is dropped, so that nothing waits for an admission that ended.
struct Closing<T>(Arc<Queue<T>>);

impl<T> Drop for Closing<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.requests);
        drop(state);
        drop(left);
    }
}

impl<T: Send + 'static> Scheduler<T> {
    /// Starts the network threads. Bodies are in memory of `buffers`.
    ///
    /// # Errors
    /// Threads that cannot be had.
    pub fn new(
        limits: Limits,
        buffers: &Arc<Buffers>,
        deliver: Arc<dyn Deliver<T>>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let (queue, slots) = (Queue::new(), Slots::new(limits.requests));
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..limits.threads.max(1)).map(|_| mpsc::unbounded_channel()).unzip();
        let network = Arc::new(Threads { senders: senders.clone(), next: AtomicUsize::new(0) });
        let to_next = network.clone();
        let common = Arc::new(Common {
            // Whoever waits for the part hears that it is gone if the thread is.
            fetch_part: Box::new(move |part| _ = to_next.send(Message::Part(Box::new(part)))),
            slots: slots.clone(),
            traffic: Arc::default(),
            counters,
            hedging: Hedging::new(),
            all_units: units(limits.bytes).max(1),
            split_above_bytes: limits.split_above_bytes,
        });
        let mut admission = Some(Closing(queue.clone()));
        let mut threads = vec![];
        let mut start = |sender: &mpsc::UnboundedSender<Message<T>>, receiver| -> io::Result<()> {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let connections =
                Connections::new(Session::WHILE_READING, common.traffic.clone(), buffers.clone());
            let clients = Clients { connections, by_address: HashMap::new() };
            let thread = Network { receiver, queue: queue.clone(), common: common.clone(), clients };
            // The first thread admits requests, too.
            let admission =
                admission.take().map(|queue| admit(queue, network.clone(), common.clone(), deliver.clone()));
            let work = move || {
                runtime.block_on(async move {
                    if let Some(admission) = admission {
                        // It gives answers back when memory is not there at once, which a task whose share of time is used up could not tell.
                        tokio::spawn(tokio::task::coop::unconstrained(admission));
                    }
                    thread.run().await;
                });
            };
            threads.push((sender.clone(), std::thread::Builder::new().name("zarr net".into()).spawn(work)?));
            Ok(())
        };
        let started =
            senders.iter().zip(receivers).try_for_each(|(sender, receiver)| start(sender, receiver));
        if let Err(error) = started {
            threads.iter().for_each(|(sender, _)| drop(sender.send(Message::Stop)));
            return Err(error);
        }
        Ok(Self { queue, deliver, stopping: Arc::default(), threads, slots })
    }

    /// Queues a request behind those of the same batch.
    pub fn request(&self, request: Request, ticket: T) {
        let waiting =
            Waiting { ticket: Some(ticket), deliver: self.deliver.clone(), stopping: self.stopping.clone() };
        self.queue.push(request, waiting);
    }

    /// Whether memory for the most urgent request can be given back, and whether its batch is planned, is asked again.
    pub fn look_again(&self) {
        self.queue.changed.notify_one();
        self.slots.look_again();
    }

    /// How many requests are in flight.
    pub fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }
}

/// Reserves memory and a slot for the most urgent request, and hands it to the next thread.
async fn admit<T>(
    queue: Closing<T>,
    threads: Arc<Threads<T>>,
    common: Arc<Common>,
    deliver: Arc<dyn Deliver<T>>,
) {
    let Closing(queue) = &queue;
    let Common { all_units, slots, .. } = &*common;
    let memory = Arc::new(Semaphore::new(*all_units as usize));
    loop {
        let Some((urgency, expected_bytes)) = queue.first() else {
            queue.changed.notified().await;
            continue;
        };
        // An answer that is larger than all memory is waited for alone.
        let wanted = units(expected_bytes).clamp(1, *all_units);
        let (memory, give_back) =
            (memory.clone().acquire_many_owned(wanted), || deliver.give_back(urgency.0));
        let Some(Ok(memory)) = queue.reserved(urgency, memory, give_back).await else { continue };
        let slot = async { slots.take_ahead(|| deliver.is_planned(urgency.0)).await };
        let Some(mut slot) = queue.reserved(urgency, slot, || false).await else { continue };
        let paced = slot.paced((*all_units / wanted) as usize);
        let Some(()) = queue.reserved(urgency, paced, || false).await else { continue };
        let Some((request, ticket)) = queue.take(urgency) else { continue };
        let admitted = Admitted { request, ticket, memory, slot };
        if !threads.send(Message::Send(Box::new(admitted))) {
            return;
        }
    }
}

/// What a network thread has.
struct Network<T> {
    receiver: mpsc::UnboundedReceiver<Message<T>>,
    /// For requests whose answers are longer than was expected.
    queue: Arc<Queue<T>>,
    common: Arc<Common>,
    clients: Clients,
}

impl<T: Send + 'static> Network<T> {
    /// Polls requests until the scheduler is dropped.
    async fn run(mut self) {
        while let Some(message) = self.receiver.recv().await {
            match message {
                Message::Send(admitted) => match self.clients.of(&admitted.request.store) {
                    Ok(client) => self.start(*admitted, client),
                    Err(error) => admitted.ticket.answer(Err(error)),
                },
                Message::Part(part) => match self.clients.of(&part.request.store) {
                    Ok(client) => self.start_part(*part, client),
                    Err(error) => _ = part.answer.send(Err(error)),
                },
                Message::Stop => return,
            }
        }
    }

    fn start(&self, admitted: Admitted<T>, client: Arc<Client>) {
        let Admitted { mut request, ticket, memory, slot } = admitted;
        let (common, queue) = (self.common.clone(), self.queue.clone());
        tokio::spawn(async move {
            let transfer = Transfer { request: &request, client: &client, common: &common };
            let answer = transfer.receive(memory, slot).await;
            common.note_traffic();
            match answer {
                Ok(answer) => ticket.answer(Ok(answer)),
                Err(Stopped::Failed(error)) => ticket.answer(Err(error)),
                Err(Stopped::Longer(bytes)) => {
                    common.counters.requests_retried.add(1);
                    (request.expected_bytes, request.likely_bytes, request.was_present) =
                        (bytes, Some(bytes), true);
                    queue.push(request, ticket);
                }
            }
        });
    }

    fn start_part(&self, part: PartRequest, client: Arc<Client>) {
        let common = self.common.clone();
        tokio::spawn(async move {
            part.fetch(&client, &common).await;
            common.note_traffic();
        });
    }
}

/// The stores of one thread with its connections, by their addresses: a connection is best polled by the thread that uses it.
struct Clients {
    connections: Connections,
    /// Each with the store that has the address, which nothing else gets while it is here.
    by_address: HashMap<usize, (Arc<dyn Store>, Arc<Client>)>,
}

impl Clients {
    fn of(&mut self, store: &Arc<dyn Store>) -> io::Result<Arc<Client>> {
        let address = Arc::as_ptr(store).addr();
        if let Some((_, known)) = self.by_address.get(&address) {
            return Ok(known.clone());
        }
        let connected = store.connect(&self.connections)?.unwrap_or_else(|| store.clone());
        let client = Arc::new(Client { store: connected, splits: AtomicBool::new(true) });
        self.by_address.insert(address, (store.clone(), client.clone()));
        Ok(client)
    }
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
