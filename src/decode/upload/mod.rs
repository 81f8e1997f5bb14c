//! From a worker thread to the GPU: reads a chunk, copies it to device memory and queues it for the GPU workers.

mod chunk_upload;
mod cufile;
mod destination;
mod event;
mod packed;
mod passing;
mod received;
mod submission;
mod uploader;

pub use chunk_upload::ChunkUpload;
pub use cufile::GdsStaging;
pub use destination::{UploadContext, largest_pinned_bytes, largest_upload_bytes};
pub use received::PinnedBodies;
pub use uploader::{Uploader, UploaderParts};
