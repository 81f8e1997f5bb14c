//! Where the bytes of a store are. There is one contract for all of them: an object is named by a key and read in whole or in part.
//!
//! ```text
//! path or URL --> uri --+--> local --> folder                       (stamp: the version of a file)
//!                       +--> cloud --> client <-- access            (what the user says of credentials, endpoints, timeouts)
//!                       |                 |       service, aws_profile, retries
//!                       |                 v
//!                       |     object_store: signs, repeats --> traffic --> http1 --> pool, socket    (connecting, TLS)
//!                       |                                                    '-----> landing         (the body, to memory of buffers)
//!                       +--> zip, icechunk, references: stores inside other stores --> targets       (objects that lie elsewhere)
//! ```
//!
//! A [`Store`] is asked by [`Session`]s, which wait for the answer, and by `fetch`, which has many requests in flight; each has its own
//! [`Connections`].
//!
//! Timeouts of a request: defaults and options in `client/config.rs`; to connect in `socket.rs`; until the head of the answer comes in
//! `http1.rs`; between the bytes of its body in `landing.rs`. Requests with a proxy or an
//! option that `http1.rs` does not know (`Http1::new`), such as a timeout for the whole of a request, go to `reqwest`, with the same timeouts.
//! A store that answers 429, 500, 503 and the like, or does not answer, is asked again by `object_store`: how often and how soon says `retries.rs`, for
//! how long `session.rs`. A body that breaks off is asked for again by `object_store` where the object has an ETag, then by `fetch/transfer.rs`, of
//! metadata by `contract.rs`. A second request for an answer that is late is made in `fetch/transfer.rs`, too; how late that is says `fetch/hedging.rs`.
//! What the user is told of an error in the end, with its remedy, is in `remedy.rs`.
//!
//! *Missing* is only what a store says is absent. A missing chunk reads as the fill value, so no other error is taken for a missing chunk; but for one
//! that the user asks for: with `missing_chunks="fill-403"` what the store forbids to read (`fetch/remote/answers.rs`).

mod access;
mod aws_profile;
mod bare;
mod bucket_region;
mod buffers;
mod client;
mod cloud;
mod connections;
mod contract;
mod failed;
mod folder;
mod http1;
mod icechunk;
mod landing;
mod local;
mod memory;
mod pool;
mod references;
mod remedy;
mod retries;
mod service;
mod session;
mod socket;
mod stamp;
mod stream;
mod targets;
mod traffic;
mod uri;
mod xml;
mod zip;

pub use access::{Access, StorageOptions, without_secrets};
pub use bare::{Bare, How, read_bare};
pub use buffers::{BodyMemory, BodyPiece, Buffers};
pub use cloud::CloudStore;
pub use connections::Connections;
pub use contract::{Body, Extent, Head, Listing, Store, Version, read_part, read_whole};
pub use folder::Folder;
pub use icechunk::{IcechunkStore, pinned};
pub use memory::MemoryStore;
pub use references::{KeptDocuments, ReferenceStore};
pub use session::{FileBytes, Session, Sessions};
pub use stamp::Stamp;
pub use targets::{Origin, Targets};
pub use traffic::Traffic;
pub use uri::{is_url, open};
pub use zip::ZipStore;
