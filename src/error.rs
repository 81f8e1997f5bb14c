//! Errors: what went wrong, where, and what to do about it.

use crate::store::Obstacle;

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
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

/// The place in a store that an error speaks of, as exactly as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The store as the user named it.
    pub store: String,
    /// Path of the array inside the store; empty when the store is the array.
    pub array: String,
    /// Coordinates in the array's chunk grid.
    pub chunk: Option<Vec<u64>>,
    /// Coordinates of the inner chunk inside its sharded chunk.
    pub inner_chunk: Option<Vec<u64>>,
    /// The store key of the chunk, which is also its file below the store's folder.
    pub key: Option<String>,
    /// Bytes of the file, end excluded.
    pub byte_range: Option<Range<u64>>,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inner) = &self.inner_chunk {
            write!(f, "inner chunk {inner:?} of ")?;
        }
        if let Some(chunk) = &self.chunk {
            write!(f, "chunk {chunk:?}, ")?;
        }
        if self.array.is_empty() {
            write!(f, "array \"{}\"", self.store)?;
        } else {
            write!(f, "array \"{}\" of \"{}\"", self.array, self.store)?;
        }
        if let Some(key) = &self.key {
            write!(f, ", file \"{}/{key}\"", self.store.trim_end_matches('/'))?;
        }
        if let Some(range) = &self.byte_range {
            write!(f, ", bytes {}..{}", range.start, range.end)?;
        }
        Ok(())
    }
}

/// Whose mistake an error is; decides the exception that Python sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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

/// Everything that can go wrong. The text of each variant ends with the remedy.
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
    /// A codec that nobody here decodes, or one with parameters that make no sense.
    Codec {
        /// Store and array.
        at: Context,
        /// The codec's name in the metadata.
        codec: String,
        /// Its parameters, as JSON.
        parameters: String,
        /// What is wrong with them; `None` if the codec is not known.
        problem: Option<String>,
        /// The names of those that can be read.
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
    pub fn kind(&self) -> Kind {
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
            | Self::Budget { .. } => Kind::Argument,
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
            | Self::Panic { .. } => Kind::Runtime,
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

/// A list for a sentence: `"a", "b"`, or "none".
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}\"{name}\"", if i > 0 { ", " } else { "" })?;
        }
        if self.0.len() > SHOWN {
            write!(f, " and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// What the system says, with what to do about it.
struct Remedied<'a>(&'a std::io::Error);

impl fmt::Display for Remedied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(source) = self;
        write!(f, "{source}")?;
        match source.raw_os_error() {
            // It says that itself.
            None if source.get_ref().is_some_and(|inner| inner.is::<Obstacle>()) => Ok(()),
            Some(libc::EMFILE | libc::ENFILE) => f.write_str("; raise the limit on open files (ulimit -n)"),
            Some(libc::EACCES) => {
                f.write_str("; check the permissions of the file, and of the folders that it is in")
            }
            _ => f.write_str("; check the file and its permissions"),
        }
    }
}

/// The codecs that can be read, by their names in Zarr v3 metadata or, where they have none, in v2. A test of the
/// dataset compares them with what there is.
pub(crate) const CODECS: [&str; 19] = [
    "adler32",
    "bitround",
    "blosc",
    "bytes",
    "bz2",
    "crc32c",
    "delta",
    "fixedscaleoffset",
    "fletcher32",
    "gzip",
    "lz4",
    "packbits",
    "pcodec",
    "sharding_indexed",
    "shuffle",
    "snappy",
    "transpose",
    "zlib",
    "zstd",
];

/// What to do about a file whose bytes are wrong.
const COPY_AGAIN: &str = "the file is damaged or cut short, copy or write it again";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument { name, problem } => write!(f, "argument `{name}`: {problem}"),
            Self::StoreNotFound { path } => {
                write!(f, "path \"{path}\" does not exist; give the folder of a Zarr store, group or array")
            }
            Self::StoreIsFile { path } => write!(
                f,
                "path \"{path}\" is a file; give the folder of a Zarr store (a zip store has to be unpacked first)"
            ),
            Self::Unreadable { path, source } => {
                write!(f, "\"{}\" cannot be read: {}", path.escape_debug(), Remedied(source))
            }
            Self::NotZarr { path } => write!(
                f,
                "path \"{path}\" holds no Zarr metadata (no zarr.json, .zarray or .zgroup); give the folder that does"
            ),
            Self::GroupWithoutArrays { path, present } => write!(
                f,
                "path \"{path}\" is a group, not an array; name its arrays with `arrays=[...]`, there are: {}",
                Names(present)
            ),
            Self::ArrayIsNotGroup { path, asked } => write!(
                f,
                "path \"{path}\" is an array, not a group, so it cannot hold the arrays {}; leave out `arrays` or give the group's path",
                Names(asked)
            ),
            Self::ArrayNotFound { at, present } => write!(
                f,
                "\"{}\" of \"{}\" is not an array; the arrays there are: {}",
                at.array,
                at.store,
                Names(present)
            ),
            Self::Metadata { at, source } => write!(
                f,
                "{at}: its metadata cannot be used: {source}; repair it, or rewrite the array with codecs and types that are supported"
            ),
            Self::DataType { at, data_type } => write!(
                f,
                "{at}: DALI has no data type for \"{data_type}\"; bool, integers and floating-point numbers of up to 64 bits, complex numbers, datetime64 and timedelta64 can be read: rewrite the array as one of them, or leave it out"
            ),
            Self::Codec { at, codec, parameters, problem, known } => {
                write!(f, "{at}: codec \"{codec}\" with the parameters {parameters} ")?;
                match problem {
                    None => f.write_str("is not known")?,
                    Some(problem) => write!(f, "cannot be used: {problem}")?,
                }
                write!(
                    f,
                    "; rewrite the array with zarr-python, for example with zstd. These codecs can be read: {}",
                    known.join(", ")
                )
            }
            Self::Unlike { at, difference, remedy } => write!(f, "{at}: {difference}; {remedy}"),
            Self::ChunkGrid { at, grid } => write!(
                f,
                "{at}: its chunk grid \"{grid}\" is not regular; rewrite the array with chunks of equal shape"
            ),
            Self::ArraysDisagree { at, shape, other, other_shape, dimensions } => write!(
                f,
                "{at} has shape {shape:?} but \"{other}\" has shape {other_shape:?}; arrays that are read together need the same extents in their first {dimensions} dimension(s): give those that fit, or one reader each"
            ),
            Self::NotOnGpu { at, reason } => write!(
                f,
                "{at} cannot be decoded on the GPU: {reason}; use decode=\"auto\" or decode=\"cpu\", or rewrite the array with zstd"
            ),
            Self::NoGpu { problem } => write!(
                f,
                "the GPU backend cannot run here: {problem}; install an NVIDIA driver for CUDA 13 or use device=\"cpu\""
            ),
            Self::Nvcomp { at, source } => {
                write!(f, "{at} needs nvCOMP to be decoded on the GPU: {source}")?;
                f.write_str("; or read it with decode=\"cpu\"")
            }
            Self::Budget { name, budget_bytes, needed_bytes, what } => write!(
                f,
                "argument `{name}`: {budget_bytes} bytes cannot hold {what}; give at least {needed_bytes}"
            ),
            Self::Memory { at, bytes } => write!(
                f,
                "{at}: {bytes} bytes of memory cannot be had; lower host_memory_budget and num_decode_threads, or read smaller chunks"
            ),
            Self::Io { at, source } => write!(f, "{at}: reading failed: {}", Remedied(source)),
            Self::StoreChanged { at, problem } => write!(f, "{at}: {problem}"),
            Self::MissingChunk { at } => write!(
                f,
                "{at}: the chunk is missing; write it, or read the fill value in its place with missing_chunks=\"fill\""
            ),
            Self::ShardIndex { at, problem } => write!(f, "{at}: the shard index {problem}; {COPY_AGAIN}"),
            Self::Damaged { at, problem } => write!(f, "{at}: {problem}; {COPY_AGAIN}"),
            Self::Decode { at, source } => write!(f, "{at}: decoding failed: {source}; {COPY_AGAIN}"),
            Self::Cuda { operation, source } => write!(
                f,
                "{operation} failed on the GPU: {source}; free GPU memory, or lower device_memory_budget, if it ran out"
            ),
            Self::NvcompCall { operation, status } => write!(
                f,
                "nvCOMP's {operation} failed: {status}; read with decode=\"cpu\" to go around it, and report it"
            ),
            Self::GpuStuck { at, work, chunks, seconds } => {
                at.as_ref().map_or(Ok(()), |at| write!(f, "{at}: "))?;
                write!(f, "the GPU has not ended {work} ({chunks} of them) for {seconds} s; ")?;
                f.write_str(match work {
                    GpuWork::Decoding => {
                        "a damaged zstd chunk can do that to nvCOMP: end this process, and read with decode=\"cpu\" to find the chunk"
                    }
                    _ => "it does not answer: end this process, and look for errors of the driver in the system's log",
                })
            }
            Self::Checkpoint { problem } => {
                write!(
                    f,
                    "the checkpoint does not fit this reader: {problem}; restore it into a pipeline like the one that wrote it"
                )
            }
            Self::Forked => write!(
                f,
                "this reader was made before a fork, and neither its threads nor the GPU's context come along: build the pipeline in the process that uses it, and start processes with \"spawn\""
            ),
            Self::Thread { source } => {
                write!(
                    f,
                    "a thread could not be started: {source}; raise the limit on processes or lower num_io_threads"
                )
            }
            Self::Panic { place, message } => write!(
                f,
                "internal error in {place}: {message}; this is a bug of zarr-dali, please report it with this message"
            ),
            Self::Sticky(first) => first.fmt(f),
        }
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
    fn a_place_is_named_from_the_inside_out() {
        let at = Context {
            store: "era5.zarr".into(),
            array: "t2m".into(),
            chunk: Some(vec![0, 2]),
            inner_chunk: Some(vec![3, 1]),
            key: Some("t2m/c/0/2".into()),
            byte_range: Some(8192..12288),
        };
        assert_eq!(
            at.to_string(),
            "inner chunk [3, 1] of chunk [0, 2], array \"t2m\" of \"era5.zarr\", \
             file \"era5.zarr/t2m/c/0/2\", bytes 8192..12288"
        );
    }

    #[test]
    fn a_sticky_error_keeps_kind_and_text() {
        let first = Arc::new(Error::Argument { name: "window", problem: "is 0; give 1 or more".into() });
        let again = Error::Sticky(first.clone());
        assert_eq!(again.to_string(), first.to_string());
        assert_eq!(again.kind(), Kind::Argument);
    }

    #[test]
    fn what_helps_a_read_depends_on_what_the_system_said() {
        let text = |number| {
            let source = std::io::Error::from_raw_os_error(number);
            Error::Io { at: Context::default(), source }.to_string()
        };
        assert!(text(libc::EMFILE).ends_with("; raise the limit on open files (ulimit -n)"));
        assert!(
            text(libc::EACCES)
                .ends_with("; check the permissions of the file, and of the folders that it is in")
        );
        assert!(text(libc::EIO).ends_with("; check the file and its permissions"));
        let obstacle = Error::Io { at: Context::default(), source: Obstacle::NotAFile("a socket").into() };
        assert!(obstacle.to_string().ends_with("write the file again"), "{obstacle}");
    }
}
