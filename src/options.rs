//! Every tunable: its meaning, unit, default and range; filled from the operator's arguments.

mod arguments;

pub use arguments::Arguments;

use crate::error::{Error, Result};
use crate::machine;

/// What a missing chunk means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingChunks {
    /// The array's fill value, as the Zarr specification says.
    Fill,
    /// The same, and a chunk is missing too if the store answers 403 (forbidden) for it. Object stores that may not be listed answer so for
    /// objects that are absent.
    FillForbidden,
    /// An error that names the chunk.
    Error,
}

impl MissingChunks {
    /// The value of the argument that leaves out samples which touch a missing chunk.
    pub const SKIP: &'static str = "skip";
}

/// How several stores are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// As one dataset, one behind the other along the first dimension: windows cross from one to the next.
    Concat,
    /// As a dataset each: every sample lies in one store.
    Separate,
}

impl Join {
    /// How the arguments join stores.
    ///
    /// # Errors
    /// A value that is not known.
    pub fn check(arguments: &Arguments) -> Result<Self> {
        match arguments.join.as_str() {
            "concat" => Ok(Self::Concat),
            "separate" => Ok(Self::Separate),
            other => Err(argument("join", format!("\"{other}\" is none of \"concat\" and \"separate\""))),
        }
    }
}

/// Who decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decode {
    /// The CPU or the GPU, as the policy says, where both can; else the one that can.
    Auto,
    /// The GPU; an array that it cannot decode is refused.
    Gpu,
    /// The CPU.
    Cpu,
}

/// What decodes zstd frames on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuZstd {
    /// The kernels of `src/kernels/zstd_decode.cu`.
    Builtin,
    /// nvCOMP, behind a check of ours.
    Nvcomp,
}

/// How bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// cuFile where it reads to the GPU directly, `pread` elsewhere.
    Auto,
    /// Through the page cache, with `pread`.
    Posix,
    /// With cuFile; where it cannot be used, that is an error.
    Gds,
}

/// The cache of encoded chunks on the local disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheOptions {
    /// The folder that it is made in.
    pub folder: String,
    /// The most bytes that its entries have, of all readers that use the folder. No default: half of a disk would be another number for each
    /// rank that starts.
    pub bytes: u64,
}

/// The tunables after their check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Read missing chunks as fill value, or refuse them. Default: fill.
    pub missing_chunks: MissingChunks,
    /// Who decodes. Default: auto.
    pub decode: Decode,
    /// What decodes zstd on the GPU. Default: builtin.
    pub gpu_zstd: GpuZstd,
    /// Samples of a batch; 1 or more.
    pub batch_size: u64,
    /// The most samples of the chunks that a shuffle draws from at a time; 1 or more. Default 1024, as in DALI's readers.
    pub initial_fill: u64,
    /// Decoded chunks that stay for later batches in bytes, if the user gave a budget: one part in
    /// [`Options::CHUNK_CACHE_SHARE`] of it.
    pub given_resident_bytes: Option<u64>,
    /// The GPU of the GPU backend; `None` is the CPU backend.
    pub device: Option<usize>,
    /// The least number of batches in flight; 1 or more. Default 1, as in DALI's readers; the reader runs
    /// further ahead as far as the memory budgets allow.
    pub min_depth: u64,
    /// How bytes are read. Default: auto.
    pub io: Io,
    /// Threads that read for the GPU backend; 1 or more. Default: the cores this process may use, at most
    /// [`Options::MAX_AUTO_THREADS`].
    pub io_threads: usize,
    /// Threads that decode on the CPU, of the CPU backend those that read and decode; 1 or more. Default: the same; on the CPU
    /// backend `io_threads`.
    pub decode_threads: usize,
    /// Decoded chunks that are kept from epoch to epoch, in bytes. Part of the memory budget. Default: none.
    pub cache_bytes: u64,
    /// The cache of encoded chunks on the local disk. Default: none.
    pub disk_cache: Option<DiskCacheOptions>,
    /// GPU memory in bytes for outputs in flight and in DALI's hands, encoded and decoded chunks and nvCOMP's scratch.
    /// Default: [`Options::DEVICE_SHARE`] of the memory that is free when the reader starts, up to
    /// [`Options::MOST_DEVICE_SHARE`] where a batch needs it.
    pub device_memory_bytes: Option<u64>,
    /// Host memory in bytes: pinned memory for encoded chunks on the GPU backend, outputs in flight on the CPU
    /// backend. Default: a [`Options::HOST_SHARE`]th of what [`machine::memory_bytes`] says, at most
    /// [`Options::MAX_AUTO_HOST_BYTES`].
    pub host_memory_bytes: u64,
    /// Upper bound in bytes where the reader needs more than `host_memory_bytes`, as when chunks are large. Default: a
    /// [`Options::MOST_HOST_SHARE`]th of the same; `host_memory_bytes` if that was given.
    pub most_host_memory_bytes: u64,
}

impl Options {
    /// DALI counts samples in 32 bits.
    pub const MOST_BATCH_SIZE: u64 = i32::MAX as u64;
    /// Enough to copy from the page cache at the memory's rate on the machines measured (benches/NOTES.md).
    pub const MAX_AUTO_THREADS: usize = 16;
    /// The default device memory budget is the free GPU memory divided by this; the rest is the model's.
    pub const DEVICE_SHARE: u64 = 8;
    /// Where a batch needs more, the budget is what it needs, at most the free GPU memory divided by this.
    pub const MOST_DEVICE_SHARE: u64 = 2;
    /// The default host memory budget is the memory that the process may use divided by this.
    pub const HOST_SHARE: u64 = 8;
    /// Where a batch or a chunk needs more, the budget is what it needs, at most that memory divided by this.
    pub const MOST_HOST_SHARE: u64 = 2;
    /// What a reader has besides outputs, pinned memory and chunks that stay is only counted as far as it is more than this:
    /// scratch memory of threads, plans of batches, the order of samples and shard indexes.
    pub const UNCOUNTED_HOST_BYTES: u64 = 64 << 20;
    /// Pinned memory for 16 batches of 256 MiB.
    pub const MAX_AUTO_HOST_BYTES: u64 = 4 << 30;
    /// The most threads that poll requests to stores which are not folders of this machine. Over TLS a thread decrypts some 1.5 GB/s, so
    /// that eight receive what a network of 100 Gbit/s gives.
    pub const MAX_NETWORK_THREADS: usize = 8;
    /// Requests in flight at once to such stores. Each has a connection of its own.
    pub const REQUESTS_IN_FLIGHT: usize = 256;
    /// Chunks of more bytes are fetched in parts, because one connection gives some 90 MB/s only; no more bytes of a shard are fetched at once.
    pub const SPLIT_ABOVE_BYTES: u64 = 16 << 20;
    /// The chunk cache, which keeps decoded chunks for later batches, gets the memory budget divided by this.
    pub const CHUNK_CACHE_SHARE: u64 = 2;
    /// Bytes of chunks that a shuffle draws from if no budget was given. A constant, because the order of samples depends
    /// on it, and that should be the same on every machine.
    pub const RESIDENT_BYTES: u64 = 2 << 30;

    /// Bytes of decoded chunks that a shuffle may draw from.
    pub fn shuffle_bytes(&self) -> u64 {
        self.given_resident_bytes.unwrap_or(Self::RESIDENT_BYTES)
    }

    /// Checks the tunables among the arguments.
    ///
    /// # Errors
    /// [`Error::Argument`] names the first one that cannot be used.
    pub fn check(arguments: &Arguments) -> Result<Self> {
        let missing_chunks = match arguments.missing_chunks.as_str() {
            "fill" => MissingChunks::Fill,
            "fill-403" => MissingChunks::FillForbidden,
            // Samples that touch chunks that were missing are left out before; none is expected to be missing later.
            "error" | MissingChunks::SKIP => MissingChunks::Error,
            other => {
                return Err(argument(
                    "missing_chunks",
                    format!("\"{other}\" is none of \"fill\", \"fill-403\", \"skip\" and \"error\""),
                ));
            }
        };
        let decode = match arguments.decode.as_str() {
            "auto" => Decode::Auto,
            "gpu" => Decode::Gpu,
            "cpu" => Decode::Cpu,
            other => {
                return Err(argument(
                    "decode",
                    format!("\"{other}\" is none of \"auto\", \"gpu\" and \"cpu\""),
                ));
            }
        };
        let gpu_zstd = match arguments.gpu_zstd.as_str() {
            "nvcomp" => GpuZstd::Nvcomp,
            "builtin" => GpuZstd::Builtin,
            other => {
                return Err(argument(
                    "gpu_zstd",
                    format!("\"{other}\" is none of \"builtin\" and \"nvcomp\""),
                ));
            }
        };
        let device = usize::try_from(arguments.device_id).ok();
        if decode == Decode::Gpu && device.is_none() {
            let problem = "\"gpu\" needs the GPU backend; give device=\"gpu\", or decode=\"auto\"";
            return Err(argument("decode", problem.into()));
        }
        let io = match arguments.io.as_str() {
            "auto" => Io::Auto,
            "posix" => Io::Posix,
            "gds" if device.is_some() => Io::Gds,
            "gds" => {
                let problem = "\"gds\" reads to a GPU; give device=\"gpu\", or io=\"auto\"";
                return Err(argument("io", problem.into()));
            }
            other => {
                let problem = format!("\"{other}\" is none of \"auto\", \"posix\" and \"gds\"");
                return Err(argument("io", problem));
            }
        };
        let threads = |name, given, automatic: usize| {
            Ok(match at_least(name, given, 0)? {
                0 => automatic,
                given => usize::try_from(given).unwrap_or(usize::MAX).min(1024),
            })
        };
        let io_threads = threads("num_io_threads", arguments.num_io_threads, automatic_threads())?;
        let decoding = if device.is_some() { automatic_threads() } else { io_threads };
        let decode_threads = threads("num_decode_threads", arguments.num_decode_threads, decoding)?;
        let given = match device {
            None => arguments.host_memory_budget,
            Some(_) => arguments.device_memory_budget,
        };
        let device_memory_bytes = match at_least("device_memory_budget", arguments.device_memory_budget, 0)? {
            0 => None,
            given => Some(given),
        };
        let (host_memory_bytes, most_host_memory_bytes) =
            match at_least("host_memory_budget", arguments.host_memory_budget, 0)? {
                0 => {
                    let all = machine::memory_bytes();
                    let bytes = (all / Self::HOST_SHARE).min(Self::MAX_AUTO_HOST_BYTES);
                    (bytes, all / Self::MOST_HOST_SHARE)
                }
                given => (given, given),
            };
        let disk_cache = disk_cache(&arguments.cache_dir, arguments.cache_dir_bytes)?;
        let batch_size = at_least("batch_size", arguments.batch_size, 1)?;
        if batch_size > Self::MOST_BATCH_SIZE {
            let problem = format!(
                "{batch_size} samples are more than DALI's batches can have, {}",
                Self::MOST_BATCH_SIZE
            );
            return Err(argument("batch_size", problem));
        }
        Ok(Self {
            missing_chunks,
            decode,
            gpu_zstd,
            batch_size,
            initial_fill: at_least("initial_fill", arguments.initial_fill, 1)?,
            given_resident_bytes: u64::try_from(given)
                .ok()
                .filter(|&given| given > 0)
                .map(|given| given / Self::CHUNK_CACHE_SHARE),
            device,
            min_depth: at_least("prefetch_queue_depth", arguments.prefetch_queue_depth, 1)?,
            io,
            io_threads,
            decode_threads,
            cache_bytes: at_least("cache_bytes", arguments.cache_bytes, 0)?,
            disk_cache,
            device_memory_bytes,
            host_memory_bytes,
            most_host_memory_bytes,
        })
    }
}

fn disk_cache(folder: &str, bytes: i64) -> Result<Option<DiskCacheOptions>> {
    match (folder, at_least("cache_dir_bytes", bytes, 0)?) {
        ("", 0) => Ok(None),
        ("", _) => Err(argument(
            "cache_dir_bytes",
            "there is no cache on a disk without `cache_dir`; give both".into(),
        )),
        (_, 0) => {
            let problem =
                "`cache_dir` needs a bound; give the most bytes that all readers may keep in that folder";
            Err(argument("cache_dir_bytes", problem.into()))
        }
        (folder, _) if folder.contains("://") => {
            Err(argument("cache_dir", format!("\"{folder}\" is a URL; give a folder on a local disk")))
        }
        (folder, bytes) => Ok(Some(DiskCacheOptions { folder: folder.into(), bytes })),
    }
}

/// GPU memory that a reader may use.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBudget {
    /// Bytes that it may use.
    pub bytes: u64,
    /// Upper bound in bytes where the reader needs more than `bytes`.
    pub most_bytes: u64,
}

impl Options {
    /// GPU memory that the reader may use; `free_bytes` asks for what is free.
    ///
    /// # Errors
    /// Those of `free_bytes`.
    pub fn device_budget(&self, free_bytes: impl FnOnce() -> Result<u64>) -> Result<DeviceBudget> {
        if let Some(bytes) = self.device_memory_bytes {
            return Ok(DeviceBudget { bytes, most_bytes: bytes });
        }
        let free = free_bytes()?;
        Ok(DeviceBudget { bytes: free / Self::DEVICE_SHARE, most_bytes: free / Self::MOST_DEVICE_SHARE })
    }
}

/// An error about an argument.
pub(crate) fn argument(name: &'static str, problem: String) -> Error {
    Error::Argument { name, problem }
}

fn at_least(name: &'static str, value: i64, least: u64) -> Result<u64> {
    match u64::try_from(value) {
        Ok(value) if value >= least => Ok(value),
        _ => Err(argument(name, format!("{value} is too small; give {least} or more"))),
    }
}

/// The cores this process may run on (cgroup limits and affinity included).
fn automatic_threads() -> usize {
    std::thread::available_parallelism().map_or(4, std::num::NonZero::get).min(Options::MAX_AUTO_THREADS)
}

/// Threads that poll requests to stores which are not folders of this machine: one for each core, which sleeps while nothing arrives.
pub fn network_threads() -> usize {
    automatic_threads().min(Options::MAX_NETWORK_THREADS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_values_are_usable() {
        let options = Options::check(&Arguments::new("x")).unwrap();
        assert!((1..=Options::MAX_AUTO_THREADS).contains(&options.io_threads));
        assert_eq!(options.io_threads, options.decode_threads);
        assert!(options.host_memory_bytes > 0 && options.host_memory_bytes <= Options::MAX_AUTO_HOST_BYTES);
        assert_eq!(options.device, None);
    }

    #[test]
    fn every_bad_value_names_its_argument() {
        type Change = fn(&mut Arguments);
        let cases: [(&str, Change); 17] = [
            ("missing_chunks", |a| a.missing_chunks = "leave".into()),
            ("decode", |a| a.decode = "tpu".into()),
            ("gpu_zstd", |a| a.gpu_zstd = "libzstd".into()),
            ("decode", |a| a.decode = "gpu".into()),
            ("io", |a| a.io = "uring".into()),
            ("io", |a| a.io = "gds".into()),
            ("num_io_threads", |a| a.num_io_threads = -1),
            ("num_decode_threads", |a| a.num_decode_threads = -1),
            ("cache_bytes", |a| a.cache_bytes = -1),
            ("cache_dir_bytes", |a| a.cache_dir_bytes = -1),
            ("cache_dir_bytes", |a| a.cache_dir_bytes = 1),
            ("cache_dir_bytes", |a| a.cache_dir = "/tmp".into()),
            ("cache_dir", |a| (a.cache_dir, a.cache_dir_bytes) = ("s3://b/c".into(), 1)),
            ("prefetch_queue_depth", |a| a.prefetch_queue_depth = 0),
            ("device_memory_budget", |a| a.device_memory_budget = -5),
            ("batch_size", |a| a.batch_size = 0),
            ("batch_size", |a| a.batch_size = 1 << 40),
        ];
        for (name, change) in cases {
            let mut arguments = Arguments::new("x");
            change(&mut arguments);
            let error = Options::check(&arguments).unwrap_err();
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
    }
}
