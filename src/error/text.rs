//! What errors say: what, where, expected and found, and the remedy.

use super::obstacle::Obstacle;
use super::{Error, GpuWork};

use std::fmt;

/// A list for a sentence: `"a", "b"`, or "none".
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        if self.0.is_empty() {
            return f.write_str("none that can be listed");
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
                "path \"{path}\" is a file; give the folder of a Zarr store, or a zip file with one"
            ),
            Self::Unreadable { path, source } => {
                write!(f, "\"{}\" cannot be read: {}", path.escape_debug(), Remedied(source))
            }
            Self::NotZarr { path } => {
                let inside = if path.to_ascii_lowercase().ends_with(".zip") {
                    format!("in a zip file, it is {path}|zip:FOLDER")
                } else {
                    "at a URL, an Icechunk repository is URL|icechunk:".into()
                };
                write!(
                    f,
                    "path \"{path}\" holds no Zarr metadata (no zarr.json, .zarray or .zgroup); give the folder that does ({inside})"
                )
            }
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
                "the GPU backend cannot run here: {problem}; install an NVIDIA driver for CUDA 12 or 13, or use device=\"cpu\""
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Context;

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
