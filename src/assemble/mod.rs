//! From decoded read chunks to outputs: on the host here, on the GPU by the gather kernel ([`device`]).

mod arithmetic;
mod conversion;
pub mod device;
pub mod host;
mod values;

pub use conversion::{Conversion, Normalise};
pub use values::conversions;

/// The memory of one output of one batch, lent by the consumer until the batch is handed over.
#[derive(Clone, Copy, Debug)]
pub struct OutputMemory {
    /// Address on the host or on the GPU.
    pub address: u64,
    /// Size.
    pub bytes: u64,
}
