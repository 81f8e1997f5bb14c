//! Errors: what went wrong, where, and what to do about it.

mod context;
mod obstacle;
mod text;

pub use context::Context;
pub use obstacle::Obstacle;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a library below us, kept whole.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Tells the user on stderr, once per process and text.
pub fn log_once(text: &str) {
    static LOGGED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.get_or_insert_default().insert(text.to_owned()) {
        eprintln!("zarr-dali: {text}");
    }
}

/// Whose mistake an error is; decides the exception that Python sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An argument, or a store that the arguments do not fit: `ValueError`, when the pipeline is built.
    Argument,
    /// Found while reading, or missing on this machine: `RuntimeError`.
    Runtime,
}

/// What a thread waits for on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuWork {
    /// A group of chunks to be decoded and gathered.
    Decoding,
    /// Copies to the GPU.
    Copying,
    /// Memory to be given back, which waits for everything that runs.
    Freeing,
}

impl fmt::Display for GpuWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decoding => "decoding chunks",
            Self::Copying => "copying chunks",
            Self::Freeing => "giving memory back",
        })
    }
}

/// Everything that can go wrong. The text of each variant (`text.rs`) ends with the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument of the operator has a value that cannot be used.
    Argument {
        /// The argument's name as the user writes it.
        name: &'static str,
        /// What is wrong with the value, and which values would do.
        problem: String,
    },
    /// Nothing exists at the path.
    StoreNotFound {
        /// The path as given.
        path: String,
    },
    /// The path is a file, and stores are folders.
    StoreIsFile {
        /// The path as given.
        path: String,
    },
    /// A store's folder or metadata file that cannot be opened or read.
    Unreadable {
        /// The folder or file.
        path: String,
        /// What stands in the way.
        source: std::io::Error,
    },
    /// The folder holds no Zarr metadata.
    NotZarr {
        /// The path as given.
        path: String,
    },
    /// The path is a group and no array of it was named.
    GroupWithoutArrays {
        /// The path as given.
        path: String,
        /// The arrays that are there.
        present: Vec<String>,
    },
    /// The path is an array, and arrays inside it were asked for.
    ArrayIsNotGroup {
        /// The path as given.
        path: String,
        /// The arrays that were asked for.
        asked: Vec<String>,
    },
    /// No array of that name.
    ArrayNotFound {
        /// The store and the name that was asked for.
        at: Context,
        /// The arrays that are there.
        present: Vec<String>,
    },
    /// Metadata that zarrs cannot read or does not support.
    Metadata {
        /// Store and array.
        at: Context,
        /// What zarrs says.
        source: Source,
    },
    /// A codec that is not known, or one with parameters that make no sense.
    Codec {
        /// Store and array.
        at: Context,
        /// The codec's name in the metadata.
        codec: String,
        /// Its parameters, as JSON.
        parameters: String,
        /// What is wrong with them; `None` if the codec is not known.
        problem: Option<String>,
        /// The names of the codecs that can be read.
        known: Vec<String>,
    },
    /// A data type that DALI has no equivalent of.
    DataType {
        /// Store and array.
        at: Context,
        /// The type's name in the metadata.
        data_type: String,
    },
    /// A chunk grid that is not regular.
    ChunkGrid {
        /// Store and array.
        at: Context,
        /// The grid's name in the metadata.
        grid: String,
    },
    /// Arrays that cannot be joined or stacked.
    Unlike {
        /// The first array.
        at: Context,
        /// In what they differ, what it is in each, and the place of the one that does not fit.
        difference: String,
        /// Why it has to be the same, and what to do.
        remedy: &'static str,
    },
    /// Arrays that cannot be sampled together.
    ArraysDisagree {
        /// The store and the first of the two arrays.
        at: Context,
        /// Shape of the first array.
        shape: Vec<u64>,
        /// The other array.
        other: String,
        /// Shape of the other array.
        other_shape: Vec<u64>,
        /// How many leading dimensions have to be equal.
        dimensions: usize,
    },
    /// `decode="gpu"` where the GPU cannot decode the array.
    NotOnGpu {
        /// Store and array.
        at: Context,
        /// Why the GPU cannot.
        reason: String,
    },
    /// The machine cannot run the GPU backend.
    NoGpu {
        /// What is missing.
        problem: String,
    },
    /// nvCOMP is needed and cannot be used.
    Nvcomp {
        /// The array that needs it.
        at: Context,
        /// What was tried.
        source: Source,
    },
    /// A memory budget that cannot hold the least that is needed.
    Budget {
        /// The argument that sets it.
        name: &'static str,
        /// Its value in bytes.
        budget_bytes: u64,
        /// The least that would do, in bytes.
        needed_bytes: u64,
        /// What needs it.
        what: String,
    },
    /// The system does not give memory.
    Memory {
        /// What it was for.
        at: Context,
        /// How many bytes were asked for.
        bytes: u64,
    },
    /// The operating system refused a read.
    Io {
        /// The place that was read.
        at: Context,
        /// What the system said.
        source: std::io::Error,
    },
    /// An array that is not the one any more that was opened.
    StoreChanged {
        /// Its metadata file.
        at: Context,
        /// What happened to it, and what to do.
        problem: &'static str,
    },
    /// A chunk is missing and `missing_chunks="error"`.
    MissingChunk {
        /// The chunk.
        at: Context,
    },
    /// The index of a sharded chunk is damaged.
    ShardIndex {
        /// The chunk.
        at: Context,
        /// What is wrong with the index.
        problem: String,
    },
    /// Encoded bytes that cannot be what the metadata says.
    Damaged {
        /// The chunk.
        at: Context,
        /// What is wrong with the bytes.
        problem: String,
    },
    /// A decoder refused a chunk.
    Decode {
        /// The chunk.
        at: Context,
        /// What the decoder says.
        source: Source,
    },
    /// A CUDA call failed.
    Cuda {
        /// The call, in words.
        operation: &'static str,
        /// What the driver says.
        source: cudarc::driver::DriverError,
    },
    /// An nvCOMP call failed for a whole group of chunks.
    NvcompCall {
        /// The call.
        operation: &'static str,
        /// nvCOMP's status in words.
        status: String,
    },
    /// The GPU does not come to an end with copies, or with a group of chunks.
    GpuStuck {
        /// The first chunk, if it is known.
        at: Option<Context>,
        /// What it does.
        work: GpuWork,
        /// How many chunks there are.
        chunks: usize,
        /// For how long.
        seconds: u64,
    },
    /// A checkpoint that does not belong to this reader.
    Checkpoint {
        /// What differs.
        problem: String,
    },
    /// The reader was made before a fork and is used behind it.
    Forked,
    /// A thread could not be started.
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
    /// A bug of ours: something panicked.
    Panic {
        /// Where it was caught.
        place: String,
        /// The panic's message.
        message: String,
    },
    /// An earlier error of the same reader, which stays.
    Sticky(Arc<Error>),
}

impl Error {
    /// Whose mistake this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Argument { .. }
            | Self::StoreNotFound { .. }
            | Self::StoreIsFile { .. }
            | Self::Unreadable { .. }
            | Self::NotZarr { .. }
            | Self::GroupWithoutArrays { .. }
            | Self::ArrayIsNotGroup { .. }
            | Self::ArrayNotFound { .. }
            | Self::Metadata { .. }
            | Self::Codec { .. }
            | Self::DataType { .. }
            | Self::Unlike { .. }
            | Self::ChunkGrid { .. }
            | Self::ArraysDisagree { .. }
            | Self::NotOnGpu { .. }
            | Self::Budget { .. } => ErrorKind::Argument,
            Self::NoGpu { .. }
            | Self::Nvcomp { .. }
            | Self::Memory { .. }
            | Self::Io { .. }
            | Self::StoreChanged { .. }
            | Self::MissingChunk { .. }
            | Self::ShardIndex { .. }
            | Self::Damaged { .. }
            | Self::Decode { .. }
            | Self::Cuda { .. }
            | Self::NvcompCall { .. }
            | Self::GpuStuck { .. }
            | Self::Checkpoint { .. }
            | Self::Forked
            | Self::Thread { .. }
            | Self::Panic { .. } => ErrorKind::Runtime,
            Self::Sticky(first) => first.kind(),
        }
    }

    /// What a caught panic becomes.
    pub fn panic(place: &str, payload: &(dyn std::any::Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Self::Panic { place: place.into(), message: message.into() }
    }

    /// For `map_err` after a CUDA call.
    pub fn cuda(operation: &'static str) -> impl FnOnce(cudarc::driver::DriverError) -> Self {
        move |source| Self::Cuda { operation, source }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Metadata { source, .. } | Self::Decode { source, .. } | Self::Nvcomp { source, .. } => {
                Some(source.as_ref())
            }
            Self::Io { source, .. } | Self::Unreadable { source, .. } | Self::Thread { source } => {
                Some(source)
            }
            Self::Cuda { source, .. } => Some(source),
            Self::Sticky(first) => first.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sticky_error_keeps_kind_and_text() {
        let first = Arc::new(Error::Argument { name: "window", problem: "is 0; give 1 or more".into() });
        let again = Error::Sticky(first.clone());
        assert_eq!(again.to_string(), first.to_string());
        assert_eq!(again.kind(), ErrorKind::Argument);
    }
}
