//! How fast zarrs alone reads a store's batches into host memory, for `benches/cpu_backend.py`.
//!
//! ```text
//! cargo run --release --example zarrs_direct -- STORE ARRAY THREADS SECONDS
//! ```
//!
//! Batches of 8 steps, in order, over and over. The last line is JSON: `{"gb_per_s": 1.5}`, decoded bytes.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBytes, ArraySubset, CodecOptions};
use zarrs::filesystem::FilesystemStore;

const BATCH: u64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, array, threads, seconds] = &arguments[..] else {
        return Err("give STORE ARRAY THREADS SECONDS".into());
    };
    // SAFETY: no other thread runs yet. It is read when the pool is first used.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", threads) };
    let (threads, seconds): (usize, f64) = (threads.parse()?, seconds.parse()?);
    let path = if array == "/" { "/".into() } else { format!("/{}", array.trim_matches('/')) };
    let array = Array::open(Arc::new(FilesystemStore::new(store)?), &path)?;
    let options = CodecOptions::default().with_concurrent_target(threads);
    let shape = array.shape().to_vec();
    let pass = || -> Result<u64, Box<dyn Error>> {
        let mut bytes = 0;
        for start in (0..shape[0]).step_by(BATCH as usize) {
            let mut ranges: Vec<_> = shape.iter().map(|&extent| 0..extent).collect();
            ranges[0] = start..shape[0].min(start + BATCH);
            let read: ArrayBytes<'_> =
                array.retrieve_array_subset_opt(&ArraySubset::new_with_ranges(&ranges), &options)?;
            bytes += read.into_fixed()?.len() as u64;
        }
        Ok(bytes)
    };
    pass()?;
    let (since, mut bytes) = (Instant::now(), 0);
    while since.elapsed() < Duration::from_secs_f64(seconds) {
        bytes += pass()?;
    }
    println!("{{\"gb_per_s\": {:.3}}}", bytes as f64 / since.elapsed().as_secs_f64() / 1e9);
    Ok(())
}
