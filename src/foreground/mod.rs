//! Which samples a mask keeps: those that have enough foreground in it.
//!
//! The mask is read with a reader of its own, in blocks of bounded size, as elements that are 0 or not. Of a block the samples
//! are counted dimension by dimension: sums along the windows of one dimension, then sums of these along the next. What came of it is
//! kept for later readers of this process, and in a file if one is named.

mod blocks;
mod count;
mod kept;
mod mask;

use crate::error::{Result, log_once};
use crate::options::{Arguments, argument};
use crate::reader::Setup;
use crate::sampler::{Choice, Domain};

use blocks::Blocks;
use count::Counter;
use kept::{CacheFile, Kept};
use mask::Mask;

/// Finds the samples that `mask` keeps, if there is one, and puts them into the arguments.
///
/// # Errors
/// Masks that cannot be read or do not fit the arrays, and masks that keep no sample.
pub fn resolve(arguments: &mut Arguments) -> Result<()> {
    if !(0.0..=1.0).contains(&arguments.min_foreground) {
        let problem = format!("{} is no part of a sample; give 0 to 1", arguments.min_foreground);
        return Err(argument("min_foreground", problem));
    }
    if arguments.mask.is_empty() {
        let without = |name, is_given: bool| match is_given {
            true => Err(argument(name, "there is no foreground without `mask`; give both".into())),
            false => Ok(()),
        };
        without("min_foreground", arguments.min_foreground > 0.0)?;
        return without("mask_cache", !arguments.mask_cache.is_empty());
    }
    // What an epoch has of the samples, and where it starts, is decided behind the mask.
    let bare = arguments.of_all_samples();
    let setup = Setup::new(&bare)?;
    let masks = Mask::open(&bare, &setup)?;
    let key = kept::key(&bare, &setup, &masks);
    let file = CacheFile::new(&arguments.mask_cache, &setup)?;
    let samples = setup.domains.len();
    let known = match kept::known(&key) {
        Some(kept) => Some(kept),
        None => file.as_ref().map(|file| file.read(&key, samples)).transpose()?.flatten(),
    };
    let kept = match known {
        Some(kept) => kept,
        None => {
            let place = file.as_ref().map(CacheFile::begin).transpose()?;
            let found: Kept = found(&bare, &setup, &masks)?.into();
            if let Some(place) = place {
                place.write(&key, samples, &found)?;
            }
            found
        }
    };
    kept::keep(&key, &kept);
    if kept.is_empty() {
        let least = match arguments.min_foreground {
            0.0 => "any".to_string(),
            least => format!("{} % or more", least * 100.0),
        };
        let problem = format!(
            "\"{}\" has {least} foreground in none of the {samples} samples; lower min_foreground, or look whether this is the right array",
            arguments.mask
        );
        return Err(argument("mask", problem));
    }
    log_once(&format!("mask \"{}\" keeps {} of {samples} samples", arguments.mask, kept.len()));
    arguments.kept = Some(kept);
    Ok(())
}

/// The numbers of the samples with enough foreground, in their order.
fn found(arguments: &Arguments, setup: &Setup, masks: &[Mask]) -> Result<Vec<u64>> {
    let mut kept = vec![];
    for (domain, mask) in setup.domains.iter().zip(masks) {
        let blocks = Blocks::new(mask, domain);
        let mut counter = Counter::new(mask, domain, arguments.min_foreground, setup)?;
        blocks.read(arguments, mask, |bytes, pieces| counter.count(bytes, &blocks.extents, pieces))?;
        add_kept(&mut kept, mask, domain, &counter.finish());
        if kept.len() as u64 > Choice::MOST_LISTED {
            let problem = format!(
                "it keeps more than {} samples, which is too many to be listed; give a larger stride or a higher min_foreground",
                Choice::MOST_LISTED
            );
            return Err(argument("mask", problem));
        }
    }
    Ok(kept)
}

/// Adds the samples of a domain whose windows in the mask are flagged.
fn add_kept(kept: &mut Vec<u64>, mask: &Mask, domain: &Domain, flags: &count::Flags) {
    let counts: Vec<u64> = domain.windows.axes().iter().map(|axis| axis.count()).collect();
    let strides = mask.flag_strides(domain);
    let (mut places, mut flag) = (vec![0; counts.len()], 0);
    for sample in 0..domain.windows.len() {
        if flags.get(flag) {
            kept.push(domain.first + sample);
            if kept.len() as u64 > Choice::MOST_LISTED {
                return;
            }
        }
        for d in (0..counts.len()).rev() {
            places[d] += 1;
            flag += strides[d];
            if places[d] < counts[d] {
                break;
            }
            flag -= strides[d] * counts[d];
            places[d] = 0;
        }
    }
}
