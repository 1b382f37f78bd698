//! Open exports: access control, write quotas, digests of their files, and the cleaning of
//! abandoned uploads. Never talks to a client: sessions do. Imports the configuration; observe,
//! net and session import it.

pub(crate) mod acl;
pub(crate) mod client_view;
pub(crate) mod dense_files;
pub mod digest_cache;
pub(crate) mod digest_store;
pub(crate) mod open;
pub(crate) mod quota;
pub(crate) mod stale_uploads;
pub(crate) mod window_digests;
