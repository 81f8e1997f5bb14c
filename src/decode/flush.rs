//! How a thread gives back what it holds before it waits for a resource.

/// Holds resources for which other threads may be waiting: pool memory, unsent jobs.
///
/// A blocking call takes a `Flush` and calls it once before it waits. Otherwise two threads could wait for each other.
pub trait Flush {
    /// Finishes or passes on everything that is held.
    fn flush(&mut self);
}

/// Holds nothing.
impl Flush for () {
    fn flush(&mut self) {}
}
