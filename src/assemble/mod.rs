//! From decoded read chunks to outputs: on the host here, on the GPU by the gather kernel ([`device`]).

pub mod device;
pub mod host;

/// The memory of one output of one batch, lent by the consumer until the batch is handed over.
#[derive(Clone, Copy, Debug)]
pub struct OutputMemory {
    /// Address on the host or on the GPU.
    pub address: u64,
    /// Size.
    pub bytes: u64,
}
