//! One request from its first byte to its last: in parts if it is large, again if the connection breaks, up to three times if no answer comes.

use super::coalesce::split;
use super::hedging::Hedging;
use super::request::{Parts, Received, Request};
use super::slots::{Slot, Slots};
use crate::error::Obstacle;
use crate::stats::Counters;
use crate::store::{Body, Extent, Head, Session, Store, Traffic, Version};

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{Either, select, try_join, try_join_all};
use futures::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Memory is counted in units of this many bytes, because a semaphore counts in 32 bits.
const UNIT_BYTES: u64 = 4096;

/// Units of memory that hold that many bytes.
pub(super) fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// What the requests of a scheduler have in common.
pub(super) struct Common {
    /// Hands a part to the next network thread. The bytes of a body are read by one thread, so that those of parts that come at the same time are
    /// better read by several.
    pub fetch_part: Box<dyn Fn(PartRequest) + Send + Sync>,
    pub slots: Arc<Slots>,
    pub traffic: Arc<Traffic>,
    pub counters: Arc<Counters>,
    pub hedging: Hedging,
    /// All units of memory.
    pub all_units: u32,
    /// More bytes than that are fetched in parts, of at most three quarters of it.
    pub split_above_bytes: u64,
}

impl Common {
    /// Counts what connections have had to do, and heeds stores that have no time.
    pub fn note_traffic(&self) {
        self.counters.requests_retried.add(self.traffic.take_failed());
        self.counters.connections_opened.add(self.traffic.take_opened());
        if self.traffic.take_refused() {
            self.slots.refused(Instant::now());
        }
    }
}

/// A store with the connections of one thread.
#[derive(Debug)]
pub(super) struct Client {
    pub store: Arc<dyn Store>,
    /// Whether the store's versions tell the bytes of two answers to be of the same object, as far as it is known.
    pub splits: AtomicBool,
}

/// A part of a large object, which any of the threads can fetch.
pub(super) struct PartRequest {
    /// With the extent and the version of the part.
    pub request: Request,
    pub slot: Slot,
    /// Gets the part. What is in flight is dropped as soon as its thread sees that nobody waits for it. Until then it has memory that is not
    /// reserved any more.
    pub answer: oneshot::Sender<io::Result<Option<Part>>>,
}

impl PartRequest {
    /// Fetches the part.
    pub async fn fetch(self, client: &Client, common: &Common) {
        let Self { request, slot, mut answer } = self;
        let transfer = Transfer { request: &request, client, common };
        let part = pin!(async {
            match transfer.open(&request.extent, request.version.as_ref()).await? {
                Some(body) => transfer.read_with(slot, &request.extent, body).await.map(Some),
                None => Ok(None),
            }
        });
        let fetched = match select(pin!(answer.closed()), part).await {
            Either::Left(_) => return,
            Either::Right((part, _)) => part,
        };
        let _ = answer.send(fetched);
    }
}

/// A part of an object that has arrived.
pub(super) struct Part {
    head: Head,
    range: Range<u64>,
    pieces: Vec<Bytes>,
}

/// Why a transfer ends without an answer to hand over.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It failed.
    Failed(io::Error),
    /// The answer has this many bytes, and less memory was reserved.
    Longer(u64),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Obstacle> for Stopped {
    fn from(obstacle: Obstacle) -> Self {
        Self::Failed(obstacle.into())
    }
}

/// Why the parts of an object cannot be put together that were asked for at once.
enum Unlike {
    /// It is absent.
    Absent,
    /// Its first part cannot be had.
    Failed(io::Error),
    /// It is not as it was thought to be.
    Other,
}

/// How often a part is asked for again whose connection broke, of objects without an entity tag that tells their bytes. Answers that a store refuses
/// are repeated by its client, and so are the bodies of objects with such a tag: what fails then has failed for long.
const MOST_RETRIES: u32 = 5;
/// Before the first of them; doubles with each.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How many requests for one answer that is late are in flight together, at most. That it is late three times is rare, unless the store is held up as a whole.
const MOST_ASKED: u32 = 3;

/// What becomes of requests whose task or thread panics.
pub(super) const THREAD_ENDED: &str = "a network thread ended before the answer came";

/// A request that may be sent.
pub(super) struct Transfer<'a> {
    pub request: &'a Request,
    pub client: &'a Client,
    pub common: &'a Common,
}

impl Transfer<'_> {
    /// Sends the request and waits for all of its bytes. Memory is reserved for what is expected; none is taken for more.
    pub async fn receive(
        &self,
        memory: OwnedSemaphorePermit,
        slot: Slot,
    ) -> Result<Option<Received>, Stopped> {
        let answer = self.received(memory, slot).await;
        if self.request.was_present { present(answer) } else { answer }
    }

    async fn received(
        &self,
        mut memory: OwnedSemaphorePermit,
        mut slot: Slot,
    ) -> Result<Option<Received>, Stopped> {
        let Request { extent, version, expected_bytes, .. } = self.request;
        let (version, above) = (version.as_ref(), self.common.split_above_bytes);
        let part_bytes = above / 4 * 3;
        let parts = match extent {
            Extent::Range(range)
                if range.end - range.start > above && version.is_some_and(Version::tells_bytes) =>
            {
                self.check_length(range.end - range.start, &mut memory)?;
                let mut ranges = split(range.clone(), part_bytes);
                let first = Extent::Range(ranges.next().unwrap_or(range.clone()));
                let first = async {
                    let body = self.open(&first, version).await.map_err(Obstacle::of_present)?;
                    self.read_with(slot, &first, body.ok_or(Obstacle::Changed)?).await
                };
                together(first, self.rest(ranges, version)).await?
            }
            // The first part tells how long the object is.
            Extent::Whole if *expected_bytes > above && self.client.splits.load(Ordering::Relaxed) => {
                if let Some(likely) = self.request.likely_bytes.filter(|likely| *likely > above) {
                    match self.at_once(likely, part_bytes, slot).await {
                        Ok(parts) => return self.whole(parts, memory),
                        Err(Unlike::Absent) => return Ok(None),
                        Err(Unlike::Failed(error)) => return Err(error.into()),
                        Err(Unlike::Other) => {}
                    }
                    slot = self.common.slots.take().await;
                }
                let Some(first) = self.open(&Extent::Prefix(part_bytes), version).await? else {
                    return Ok(None);
                };
                let Head { object_bytes, version: found } = first.head.clone();
                self.check_length(object_bytes, &mut memory)?;
                let rest = first.range.end..object_bytes;
                if !rest.is_empty() && !found.tells_bytes() {
                    // The version does not tell whether two answers are of the same object.
                    self.client.splits.store(false, Ordering::Relaxed);
                    drop(first);
                    present(self.alone(&mut memory, slot).await)?.into_iter().collect()
                } else {
                    let extent = Extent::Range(first.range.clone());
                    let first = self.read_with(slot, &extent, first);
                    together(first, self.rest(split(rest, part_bytes), Some(&found))).await?
                }
            }
            _ => {
                let Some(whole) = self.alone(&mut memory, slot).await? else { return Ok(None) };
                vec![whole]
            }
        };
        self.whole(parts, memory)
    }

    /// Puts parts together, all of which have to be of one object.
    fn whole(
        &self,
        mut parts: Vec<Part>,
        mut memory: OwnedSemaphorePermit,
    ) -> Result<Option<Received>, Stopped> {
        let start = parts.first().map_or(0, |first| first.range.start);
        let end = parts.last().map_or(0, |last| last.range.end);
        self.check_length(end - start, &mut memory)?;
        let Some(head) = parts.first().map(|first| first.head.clone()) else {
            return Err(Obstacle::Changed.into());
        };
        if parts.iter().any(|part| part.head != head) {
            return Err(Obstacle::Changed.into());
        }
        let parts = Arc::new(Parts(parts.drain(..).flat_map(|part| part.pieces).collect()));
        Ok(Some(Received { range: start..end, head, parts, _memory: Box::new(memory) }))
    }

    /// All parts of an object that has `likely` bytes in all probability, each asked for without waiting for the first. That one has `slot` until
    /// it is read, so that objects whose other parts wait for slots do not wait for each other.
    async fn at_once(&self, likely: u64, part_bytes: u64, slot: Slot) -> Result<Vec<Part>, Unlike> {
        let version = self.request.version.as_ref();
        let first = async move {
            let body = self.open(&Extent::Prefix(part_bytes), version).await.map_err(Unlike::Failed)?;
            let body = body.ok_or(Unlike::Absent)?;
            if body.head.object_bytes != likely || !body.head.version.tells_bytes() {
                return Err(Unlike::Other);
            }
            self.read_with(slot, &Extent::Range(body.range.clone()), body).await.map_err(Unlike::Failed)
        };
        let rest = self.rest(split(part_bytes.min(likely)..likely, part_bytes), version);
        // What is wrong with the rest is an error if the first part says that there is a rest.
        let rest = async { Ok(rest.await) };
        let (first, rest) = try_join(first, rest).await?;
        let rest = rest.map_err(Unlike::Failed)?;
        match rest.iter().all(|part| part.head == first.head) {
            true => Ok(std::iter::once(first).chain(rest).collect()),
            false => Err(Unlike::Other),
        }
    }

    /// The answer in one part.
    async fn alone(&self, memory: &mut OwnedSemaphorePermit, slot: Slot) -> Result<Option<Part>, Stopped> {
        let Request { extent, version, .. } = self.request;
        let Some(body) = self.open(extent, version.as_ref()).await? else { return Ok(None) };
        self.check_length(body.range.end - body.range.start, memory)?;
        Ok(Some(self.read_with(slot, extent, body).await?))
    }

    /// Parts of an object that is there, all asked for together. Each takes a slot.
    async fn rest(
        &self,
        ranges: impl Iterator<Item = Range<u64>>,
        version: Option<&Version>,
    ) -> io::Result<Vec<Part>> {
        let parts = ranges.map(|range| async {
            let slot = self.common.slots.take().await;
            let part = self.part(range, version, slot).await.map_err(Obstacle::of_present)?;
            part.ok_or_else(|| Obstacle::Changed.into())
        });
        try_join_all(parts).await
    }

    /// A part of the object, which the next thread fetches.
    async fn part(
        &self,
        range: Range<u64>,
        version: Option<&Version>,
        slot: Slot,
    ) -> io::Result<Option<Part>> {
        let request =
            Request { extent: Extent::Range(range), version: version.cloned(), ..self.request.clone() };
        let (answer, part) = oneshot::channel();
        (self.common.fetch_part)(PartRequest { request, slot, answer });
        part.await.unwrap_or_else(|_| Err(io::Error::other(THREAD_ENDED)))
    }

    /// Checks how long the answer is, which is known now, and gives back the memory that it does not need.
    fn check_length(&self, bytes: u64, memory: &mut OwnedSemaphorePermit) -> Result<(), Stopped> {
        let most_bytes = self.request.most_bytes;
        if bytes > most_bytes {
            return Err(Obstacle::LongerThanEncoded { bytes, most_bytes }.into());
        }
        let needed = units(bytes).clamp(1, self.common.all_units) as usize;
        let Some(excess) = memory.num_permits().checked_sub(needed) else {
            return Err(Stopped::Longer(bytes));
        };
        drop(memory.split(excess));
        Ok(())
    }

    /// Makes a request.
    async fn open(&self, extent: &Extent, version: Option<&Version>) -> io::Result<Option<Body>> {
        self.common.counters.requests.add(1);
        self.common.hedging.note_request();
        self.ask(extent, version).await
    }

    /// Waits for the beginning of an answer. If none comes for longer than of nearly all others, asks a second time, and a third if that is as
    /// late, and takes the first answer.
    async fn ask(&self, extent: &Extent, version: Option<&Version>) -> io::Result<Option<Body>> {
        let Common { counters, hedging, slots, .. } = self.common;
        let ask = || self.client.store.get(&self.request.key, extent.clone(), version);
        let asked = Instant::now();
        let (mut times, mut last_asked, mut answers) = (1, asked, FuturesUnordered::from_iter([ask()]));
        let answer = loop {
            let others = answers.len() - 1;
            let late = async move {
                match times < MOST_ASKED {
                    true => self.late(last_asked).await,
                    false => std::future::pending().await,
                }
            };
            match select(answers.select_next_some(), pin!(late)).await {
                // Another may be right.
                Either::Left((Err(_), _)) if others > 0 => {}
                Either::Left((answer, _)) => break answer,
                Either::Right(_) => {
                    counters.requests_hedged.add(1);
                    (times, last_asked) = (times + 1, Instant::now());
                    answers.push(ask());
                }
            }
        };
        let elapsed = asked.elapsed();
        hedging.note(elapsed);
        if answer.is_ok() {
            counters.time_to_first_byte.note(elapsed);
            slots.answered();
        }
        answer
    }

    /// Waits until the answer to a request of that time takes longer than nearly all others, as far as is known by then, and another request
    /// may be made.
    async fn late(&self, asked: Instant) {
        let hedging = &self.common.hedging;
        loop {
            let left = hedging.delay().map(|delay| delay.saturating_sub(asked.elapsed()));
            match left {
                Some(Duration::ZERO) if hedging.may_hedge() => return,
                None | Some(Duration::ZERO) => tokio::time::sleep(Hedging::LEAST).await,
                Some(left) => tokio::time::sleep(left).await,
            }
        }
    }

    /// As [`Transfer::read`], and gives the slot of the request back.
    async fn read_with(&self, slot: Slot, extent: &Extent, body: Body) -> io::Result<Part> {
        let part = self.read(extent, body).await?;
        slot.received();
        Ok(part)
    }

    /// Reads a body to its end. If its connection breaks, asks for the rest, or for all of it where the version cannot tell that the rest belongs
    /// to what has come.
    async fn read(&self, extent: &Extent, mut body: Body) -> io::Result<Part> {
        let (head, range) = (body.head.clone(), body.range.clone());
        let (mut pieces, mut had) = (vec![], 0);
        let is_resumed = matches!(head.version, Version::ETag(_)) && head.version.tells_bytes();
        let most_retries = if is_resumed { 1 } else { MOST_RETRIES };
        let began = Instant::now();
        for retries in 0.. {
            let read = body.read_pieces(&mut pieces).await;
            let has = pieces.iter().map(|piece: &Bytes| piece.len() as u64).sum();
            self.common.counters.bytes_fetched.add(has - had);
            match read {
                Ok(_) => break,
                Err(error)
                    if retries == most_retries
                        || is_overlong(&error)
                        || began.elapsed() > Session::WHILE_READING =>
                {
                    return Err(error);
                }
                Err(_) => had = has,
            }
            self.common.counters.requests_retried.add(1);
            tokio::time::sleep(RETRY_PAUSE * (1 << retries)).await;
            if !head.version.tells_bytes() {
                (pieces, had) = (vec![], 0);
            }
            let left = range.start + had..range.end;
            let is_whole = left == range && *extent == Extent::Whole;
            let again = if is_whole { Extent::Whole } else { Extent::Range(left.clone()) };
            let answer = self.ask(&again, Some(&head.version)).await.map_err(Obstacle::of_present)?;
            body = answer.ok_or(Obstacle::Changed)?;
            if body.head != head || body.range != left {
                return Err(Obstacle::Changed.into());
            }
        }
        Ok(Part { head, range, pieces })
    }
}

/// The first part of an object and the others, in their order.
async fn together(
    first: impl Future<Output = io::Result<Part>>,
    rest: impl Future<Output = io::Result<Vec<Part>>>,
) -> io::Result<Vec<Part>> {
    let (first, rest) = try_join(first, rest).await?;
    Ok(std::iter::once(first).chain(rest).collect())
}

/// The answer for an object that was there before: that it is absent or forbidden now is an error.
fn present<T>(answer: Result<Option<T>, Stopped>) -> Result<Option<T>, Stopped> {
    match answer {
        Ok(None) => Err(Obstacle::Changed.into()),
        Err(Stopped::Failed(error)) => Err(Stopped::Failed(Obstacle::of_present(error))),
        answer => answer,
    }
}

/// Whether more bytes came than were announced, which is no matter of the connection.
fn is_overlong(error: &io::Error) -> bool {
    matches!(Obstacle::of(error), Some(Obstacle::Overlong { .. }))
}
