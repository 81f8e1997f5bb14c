//! The operator's arguments as they come, before any check.

use std::sync::Arc;

/// The operator's arguments as the user gave them, unchecked.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// Folders of stores, groups or arrays, or patterns that match some; more than one are read together as `join` says.
    pub paths: Vec<String>,
    /// `concat` or `separate`.
    pub join: String,
    /// Of stores that are read separately, `roi_start`, `roi_end`, `exclude` and `breaks` of each: a JSON list of objects, or empty.
    pub per_store: String,
    /// Array paths inside the store, one output each; empty: the path itself is an array.
    pub arrays: Vec<String>,
    /// Whether symbolic links may lead out of a store's folder.
    pub follow_links: bool,
    /// How to access stores that are no folders: a JSON object, or empty.
    pub storage_options: String,
    /// One output in which the arrays are stacked on a new axis, instead of one each.
    pub stack: bool,
    /// One output in which levels and arrays are channels.
    pub stack_channels: bool,
    /// Decode by the CF attributes.
    pub mask_and_scale: bool,
    /// The outputs' type, as DALI names it.
    pub dtype: Option<String>,
    /// Subtracted from the values: nothing, one value, or one per array.
    pub mean: Vec<f64>,
    /// The values are divided by: nothing, one value, or one per array.
    pub std: Vec<f64>,
    /// What each array, or each channel of it, is normalized by in place of `mean` and `std`: JSON, or empty.
    pub normalize: String,
    /// Extents of a sample along the leading dimensions.
    pub window: Option<Vec<i64>>,
    /// Steps between the starts of neighbouring samples along the window's dimensions.
    pub stride: Option<Vec<i64>>,
    /// Steps between the elements of a window along its dimensions.
    pub dilation: Option<Vec<i64>>,
    /// Steps of a sample in the first dimension, relative to the one that it is named by.
    pub offsets: Option<Vec<i64>>,
    /// The same for dimensions by name or number, and what windows may not reach over there: JSON, or empty.
    pub dimension_offsets: String,
    /// Where the region that samples are taken from starts, along the leading dimensions.
    pub roi_start: Option<Vec<i64>>,
    /// Where it ends.
    pub roi_end: Option<Vec<i64>>,
    /// Indices of dimensions by name, laid one behind another: JSON, or empty.
    pub select: String,
    /// Indices of the first dimension that no sample may touch.
    pub exclude: Vec<i64>,
    /// Indices of the first dimension that no sample may reach over: before one, and at or behind it.
    pub breaks: Vec<i64>,
    /// The samples to read, as rows of indices: JSON, the name of a file of NumPy, or empty.
    pub samples: String,
    /// How likely each of them is drawn: likewise.
    pub weights: String,
    /// Samples of an epoch; 0: as many as there are.
    pub samples_per_epoch: i64,
    /// Path of an array that says which samples have foreground, or empty.
    pub mask: String,
    /// The least part of a sample's foreground that is not 0.
    pub min_foreground: f64,
    /// File that keeps which samples have enough of it, or empty.
    pub mask_cache: String,
    /// The numbers of the samples that `mask` and `missing_chunks` leave, ascending, once they are known.
    pub kept: Option<Arc<[u64]>>,
    /// One more output with the indices of samples.
    pub return_index: bool,
    /// Draw the samples of a reader shard in random order.
    pub random_shuffle: bool,
    /// The most samples of the chunks that they are drawn from at a time.
    pub initial_fill: i64,
    /// Where to start: a state out of a checkpoint, or empty.
    pub position: String,
    /// Seed of that order.
    pub seed: i64,
    /// This reader's shard.
    pub shard_id: i64,
    /// How many reader shards there are.
    pub num_shards: i64,
    /// Read the same reader shard in every epoch.
    pub stick_to_shard: bool,
    /// Repeat the last sample until the last batch of an epoch is full.
    pub pad_last_batch: bool,
    /// The least number of batches in flight.
    pub prefetch_queue_depth: i64,
    /// `fill` or `error`.
    pub missing_chunks: String,
    /// `auto`, `gpu` or `cpu`.
    pub decode: String,
    /// `nvcomp` or `own`.
    pub gpu_zstd: String,
    /// `auto`, `posix` or `gds`.
    pub io: String,
    /// Threads that read; 0: automatic.
    pub num_io_threads: i64,
    /// Threads that decode on the CPU; 0: automatic.
    pub num_decode_threads: i64,
    /// Bytes of decoded chunks that are kept from epoch to epoch.
    pub cache_bytes: i64,
    /// Folder of the cache of encoded chunks; empty: none.
    pub cache_dir: String,
    /// The most bytes of entries of that cache.
    pub cache_dir_bytes: i64,
    /// Bytes of GPU memory for batches in flight and decoding; 0: automatic.
    pub device_memory_budget: i64,
    /// Bytes of host memory for encoded chunks in flight; 0: automatic.
    pub host_memory_budget: i64,
    /// Samples of a batch.
    pub batch_size: i64,
    /// The GPU, or -1 for the CPU backend.
    pub device_id: i32,
}

impl Arguments {
    /// The same reader of all samples, in their order, as one reader shard.
    pub fn of_all_samples(&self) -> Self {
        Self {
            samples: String::new(),
            weights: String::new(),
            samples_per_epoch: 0,
            position: String::new(),
            shard_id: 0,
            num_shards: 1,
            random_shuffle: false,
            kept: None,
            ..self.clone()
        }
    }

    /// The operator's defaults for the array at `path`, in batches of one sample on the CPU backend.
    pub fn new(path: &str) -> Self {
        Self {
            paths: vec![path.into()],
            join: "concat".into(),
            per_store: String::new(),
            arrays: vec![],
            follow_links: true,
            storage_options: String::new(),
            stack: false,
            stack_channels: false,
            mask_and_scale: false,
            dtype: None,
            mean: vec![],
            std: vec![],
            normalize: String::new(),
            window: None,
            stride: None,
            dilation: None,
            offsets: None,
            dimension_offsets: String::new(),
            roi_start: None,
            roi_end: None,
            select: String::new(),
            exclude: vec![],
            breaks: vec![],
            samples: String::new(),
            weights: String::new(),
            samples_per_epoch: 0,
            mask: String::new(),
            min_foreground: 0.0,
            mask_cache: String::new(),
            kept: None,
            return_index: false,
            initial_fill: 1024,
            position: String::new(),
            random_shuffle: false,
            seed: 0,
            shard_id: 0,
            num_shards: 1,
            stick_to_shard: false,
            pad_last_batch: false,
            prefetch_queue_depth: 1,
            missing_chunks: "fill".into(),
            decode: "auto".into(),
            gpu_zstd: "builtin".into(),
            io: "auto".into(),
            num_io_threads: 0,
            num_decode_threads: 0,
            cache_bytes: 0,
            cache_dir: String::new(),
            cache_dir_bytes: 0,
            device_memory_budget: 0,
            host_memory_budget: 0,
            batch_size: 1,
            device_id: -1,
        }
    }
}
