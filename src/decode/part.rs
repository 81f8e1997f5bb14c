//! What is decided once about the read chunks of an array, before any of them is read.

use crate::assemble::Conversion;
use crate::codec::{self, DecodePath, GpuChain};
use crate::dataset::ArrayInfo;

use std::ops::Index;

/// Which threads can take the read chunks of a part of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The chunks are not compressed, and no checksum of them is verified by the host: I/O threads only read them.
    Uncompressed,
    /// The GPU or the CPU decodes the chunks: the policy decides.
    Either,
    /// Only the CPU can decode the chunks.
    Cpu,
}

/// How the read chunks of one part of an array are decoded. An array has one part for each store that is joined.
#[derive(Debug)]
pub struct PartPlan {
    /// Where the chunks are decoded, and with which chain. The CPU backend decodes every chain on the CPU.
    pub decode_path: DecodePath,
    /// The codec chain, if the CPU can decode it without zarrs.
    pub direct_chain: Option<GpuChain>,
    /// Which threads can take the chunks.
    pub placement: Placement,
    /// How elements become output elements.
    pub conversion: Conversion,
    /// Size of a decoded chunk in bytes.
    pub chunk_bytes: u64,
}

impl PartPlan {
    /// The plan for an array whose chunks take `decode_path`. `on_gpu`: for the GPU backend.
    pub fn new(array: &ArrayInfo, decode_path: DecodePath, conversion: Conversion, on_gpu: bool) -> Self {
        let placement = match &decode_path {
            DecodePath::Cpu(_) => Placement::Cpu,
            DecodePath::Gpu(_) if !on_gpu => Placement::Cpu,
            DecodePath::Gpu(chain) if chain.uncompressed().is_some() => Placement::Uncompressed,
            DecodePath::Gpu(_) => Placement::Either,
        };
        let direct_chain = match codec::decode_path(array) {
            DecodePath::Gpu(chain) => Some(chain),
            DecodePath::Cpu(_) => None,
        };
        Self { decode_path, direct_chain, placement, conversion, chunk_bytes: array.read_chunk_bytes() }
    }
}

/// The plans of all parts of all arrays, indexed by array and part.
#[derive(Debug)]
pub struct PartPlans(Vec<Vec<PartPlan>>);

impl PartPlans {
    /// Plans by array, then by part.
    pub fn new(plans: Vec<Vec<PartPlan>>) -> Self {
        Self(plans)
    }

    /// The plans of the parts of each array.
    pub fn arrays(&self) -> &[Vec<PartPlan>] {
        &self.0
    }

    /// The plans of all parts, array by array.
    pub fn iter(&self) -> impl Iterator<Item = &PartPlan> {
        self.0.iter().flatten()
    }
}

impl Index<(usize, usize)> for PartPlans {
    type Output = PartPlan;

    fn index(&self, (array, part): (usize, usize)) -> &PartPlan {
        &self.0[array][part]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dataset::{ElementType, StoredType};

    /// Plans for one array of each placement in `placements`, each with one part and chunks of `chunk_bytes` bytes.
    pub(crate) fn plans(placements: &[Placement], chunk_bytes: u64) -> PartPlans {
        let plan = |&placement: &Placement| {
            let read = StoredType::Element(ElementType::Float32);
            let conversion = Conversion::new(read, None, None, None, None).unwrap();
            let decode_path = DecodePath::Cpu(String::new());
            vec![PartPlan { decode_path, direct_chain: None, placement, conversion, chunk_bytes }]
        };
        PartPlans(placements.iter().map(plan).collect())
    }
}
