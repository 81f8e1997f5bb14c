//! What came of a mask: kept for later readers of this process, and in a file that the user names.

use super::mask::Mask;
use crate::error::{Error, Result, log_once};
use crate::options::{Arguments, argument};
use crate::reader::Setup;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Numbers of samples.
pub(super) type Kept = Arc<[u64]>;

/// The last results of this process, the newest first. A loader builds its reader anew wherever it goes on from another place.
static KNOWN: Mutex<VecDeque<(String, Kept)>> = Mutex::new(VecDeque::new());

/// How many results are kept, and how many samples they have together.
const MOST_KNOWN: (usize, usize) = (16, 1 << 23);

/// What the result depends on: the mask, its version, and the windows.
pub(super) fn key(arguments: &Arguments, setup: &Setup, masks: &[Mask]) -> String {
    let mask = |mask: &Mask| {
        let version =
            |part: &crate::dataset::ArrayInfo| format!("{} {:?}", part.store, part.metadata_version());
        let versions: Vec<String> = mask.array.parts.iter().map(version).collect();
        format!("{versions:?} {:?}", mask.along)
    };
    let windows: Vec<String> = setup.domains.iter().map(|domain| format!("{:?}", domain.windows)).collect();
    let all = json!([
        arguments.mask,
        arguments.min_foreground,
        arguments.missing_chunks,
        masks.iter().map(mask).collect::<Vec<_>>(),
        windows,
    ]);
    // FNV-1a, once forward and once backward.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let text = all.to_string();
    let digests =
        [text.bytes().fold(0xcbf2_9ce4_8422_2325, fold), text.bytes().rev().fold(0x9e37_79b9, fold)];
    format!("{:016x}{:016x}", digests[0], digests[1])
}

/// A result that this process has found before.
pub(super) fn known(key: &str) -> Option<Kept> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|(other, _)| other == key).map(|(_, kept)| kept.clone())
}

/// Keeps a result, and as many of those before it as there is room for.
pub(super) fn keep(key: &str, kept: &Kept) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(other, _)| other != key);
    known.push_front((key.to_string(), kept.clone()));
    known.truncate(MOST_KNOWN.0);
    while known.iter().map(|(_, kept)| kept.len()).sum::<usize>() > MOST_KNOWN.1 {
        known.pop_back();
    }
}

/// A file that keeps a result: a line of JSON, then the numbers of samples, 8 bytes each, the least significant first.
pub(super) struct CacheFile {
    path: PathBuf,
}

/// A file that is being written, beside the one that it becomes.
pub(super) struct Begun {
    path: PathBuf,
    beside: PathBuf,
    file: BufWriter<File>,
    renamed: bool,
}

const FORMAT: &str = "zarr-dali mask";
const VERSION: u64 = 1;

impl CacheFile {
    /// The file that the user named, if any.
    ///
    /// # Errors
    /// Places in no folder, or in one of the stores.
    pub fn new(path: &str, setup: &Setup) -> Result<Option<Self>> {
        if path.is_empty() {
            return Ok(None);
        }
        let path = PathBuf::from(path);
        let refused = |problem: String| argument("mask_cache", format!("\"{}\" {problem}", path.display()));
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = fs::canonicalize(folder).map_err(|error| {
            refused(format!("is in no folder that there is ({error}); make it, or name another"))
        })?;
        if path.is_dir() {
            return Err(refused("is a folder; name a file".into()));
        }
        let stores = setup.dataset.arrays.iter().flat_map(|array| &array.parts);
        let stores = stores.filter(|part| part.objects.folder().is_some());
        let roots = stores.filter_map(|part| fs::canonicalize(&part.store).ok());
        if roots.into_iter().any(|root| folder.starts_with(root)) {
            return Err(refused("lies in the store, which is only read; name a file elsewhere".into()));
        }
        Ok(Some(Self { path }))
    }

    fn refused(&self, problem: &str) -> Error {
        argument("mask_cache", format!("\"{}\" {problem}", self.path.display()))
    }

    /// What the file keeps, if it was made for this key.
    ///
    /// # Errors
    /// Another file, which is not to be written over.
    pub fn read(&self, key: &str, samples: u64) -> Result<Option<Kept>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| self.refused(&format!("cannot be opened ({error})")))?,
        };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let mut file = BufReader::new(file);
        let mut line = vec![];
        let read = file.by_ref().take(1 << 16).read_until(b'\n', &mut line);
        let header: Value = read.ok().and_then(|_| serde_json::from_slice(&line).ok()).unwrap_or_default();
        if header["format"] != FORMAT {
            return Err(
                self.refused("is no cache of a mask; name another file, or one that is not there yet")
            );
        }
        let count = header["kept"].as_u64().unwrap_or(u64::MAX);
        let is_whole =
            count.checked_mul(8).and_then(|numbers| numbers.checked_add(line.len() as u64)) == Some(bytes);
        if header["version"] != VERSION || header["key"] != key || header["samples"] != samples || !is_whole {
            log_once(&format!(
                "{} is for another mask or other samples, and is made anew",
                self.path.display()
            ));
            return Ok(None);
        }
        let mut numbers = Vec::with_capacity((count * 8) as usize);
        file.read_to_end(&mut numbers).map_err(|error| self.refused(&format!("cannot be read ({error})")))?;
        let kept: Vec<u64> = numbers
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            .collect();
        let is_right = kept.len() as u64 == count
            && kept.is_sorted_by(|one, next| one < next)
            && kept.last().is_none_or(|&last| last < samples)
            && header["digest"] == digest(&kept);
        if !is_right {
            log_once(&format!("{} is damaged, and is made anew", self.path.display()));
        }
        Ok(is_right.then(|| kept.into()))
    }

    /// Begins to write the file, so that it is known beforehand that this can be done.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(&self) -> Result<Begun> {
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        // Processes of several machines may have one number.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        name.push(format!(".{}-{now}", std::process::id()));
        let beside = self.path.with_file_name(name);
        let file = File::create_new(&beside)
            .map_err(|error| self.refused(&format!("cannot be written ({error}); name a file that can")))?;
        Ok(Begun { path: self.path.clone(), beside, file: BufWriter::new(file), renamed: false })
    }
}

impl Begun {
    /// Writes a result, which then is there as a whole.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(mut self, key: &str, samples: u64, kept: &[u64]) -> Result<()> {
        let header = json!({
            "format": FORMAT, "version": VERSION, "key": key, "samples": samples, "kept": kept.len(), "digest": digest(kept),
        });
        let written = (|| -> io::Result<()> {
            writeln!(self.file, "{header}")?;
            kept.iter().try_for_each(|sample| self.file.write_all(&sample.to_le_bytes()))?;
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            fs::rename(&self.beside, &self.path)?;
            self.renamed = true;
            Ok(())
        })();
        written.map_err(|error| {
            argument("mask_cache", format!("\"{}\" cannot be written ({error})", self.path.display()))
        })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn digest(numbers: &[u64]) -> String {
    let fold = |hash: u64, number: &u64| (hash ^ number).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    format!("{:016x}", numbers.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}
