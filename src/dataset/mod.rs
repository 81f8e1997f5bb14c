//! Opens stores, groups and arrays through zarrs and says what each array is. Reads metadata only.

mod array;
mod cf;
mod chain;
mod codec_defaults;
mod codecs;
mod declared;
mod element;
mod fields;
mod fixed_scale_offset;
mod float16;
mod follow;
mod join;
mod layout;
mod metadata;
mod metadata_file;
mod ome;
mod open;
mod paths;
mod sharding;
mod stored;

use crate::error::Result;
use crate::options::Join;
use crate::store::{Access, Session, Sessions};

pub use array::ArrayInfo;
pub use cf::Cf;
pub use chain::ReadCodec;
pub use declared::Declared;
pub use element::{ByteFormat, ElementType, StoredType};
pub use fixed_scale_offset::FixedScaleOffset;
pub(crate) use float16::{double_to_half, half_to_single, single_to_half};
pub(crate) use follow::differing;
pub use join::{Joined, VALUE_ATTRIBUTES};
pub(crate) use layout::stacked as stacked_layout;
pub use sharding::Sharding;

/// The arrays that a reader reads, in the order that they were asked for.
#[derive(Debug)]
pub struct Dataset {
    /// One per name.
    pub arrays: Vec<Joined>,
    /// The number of the array whose dimensions the axes of all arrays ([`Joined::axes`]) are, and that windows are laid over.
    pub reference: usize,
}

impl Dataset {
    /// Opens the arrays named `names` in the stores that `paths` mean, or the arrays that the stores themselves are
    /// if there are no names. Several stores are joined along the first dimension.
    ///
    /// # Errors
    /// Says what is at a path instead, which arrays there are, what about an array cannot be read, or which stores do
    /// not fit together.
    pub fn open(paths: &[String], names: &[String], access: &Access) -> Result<Self> {
        Self::open_joined(paths, names, access, Join::Concat)
    }

    /// The same for stores that are joined, or read separately.
    ///
    /// # Errors
    /// Those of [`Dataset::open`].
    pub fn open_joined(paths: &[String], names: &[String], access: &Access, join: Join) -> Result<Self> {
        let sessions = Sessions::new(Session::WHILE_OPENING);
        let stores = paths::expand(paths, access, &sessions)?;
        let mut followed = None;
        let mut parts: Vec<Vec<ArrayInfo>> = vec![];
        for store in &stores {
            let arrays = open::OpenStore::new(store, access, &sessions)?.arrays(names)?;
            if followed.is_none() {
                let reference = follow::reference(&arrays);
                let axes = follow::follow(&arrays, reference)?;
                if join == Join::Concat && stores.len() > 1 {
                    follow::check_joined(&arrays, reference, &axes)?;
                }
                followed = Some((reference, axes));
            }
            parts.resize_with(arrays.len(), Vec::new);
            parts.iter_mut().zip(arrays).for_each(|(parts, array)| parts.push(array));
        }
        let (reference, axes) = followed.unwrap_or_default();
        let joined = parts.into_iter().zip(axes);
        let joined = joined.map(|(parts, axes)| match join {
            Join::Concat => Joined::new(parts, axes),
            Join::Separate => Joined::separate(parts, axes),
        });
        Ok(Self { arrays: joined.collect::<Result<_>>()?, reference })
    }

    /// The stores that `paths` mean, with those that a pattern matches in its place.
    ///
    /// # Errors
    /// A pattern without matches, or one where nothing can be listed.
    pub fn stores(paths: &[String], access: &Access) -> Result<Vec<String>> {
        paths::expand(paths, access, &Sessions::new(Session::WHILE_OPENING))
    }

    /// Names of all arrays in the first of the stores that `paths` mean, sorted; one empty name if it is an array itself.
    ///
    /// # Errors
    /// Says what is at a path instead, or that there is no array.
    pub fn names(paths: &[String], access: &Access) -> Result<Vec<String>> {
        let sessions = Sessions::new(Session::WHILE_OPENING);
        let stores = paths::expand(paths, access, &sessions)?;
        let names = stores.iter().map(|store| open::OpenStore::new(store, access, &sessions)?.names());
        Ok(names.collect::<Result<Vec<_>>>()?.swap_remove(0))
    }

    /// What the metadata of an array declare, in the first of the stores that `paths` mean. Whatever they leave open or
    /// nobody can read is empty.
    ///
    /// # Errors
    /// Paths at which there is no store.
    pub fn declared(paths: &[String], name: &str, access: &Access) -> Result<Declared> {
        let sessions = Sessions::new(Session::WHILE_OPENING);
        let stores = paths::expand(paths, access, &sessions)?;
        Ok(open::OpenStore::new(&stores[0], access, &sessions)?.declared(name))
    }

    /// One part of an array.
    pub fn part(&self, array: usize, part: usize) -> &ArrayInfo {
        &self.arrays[array].parts[part]
    }
}
