//! Lists the exports of a server, a folder, or the matches of a pattern (`rdma-cp --list`). Reports
//! entries as they arrive, failures at the end.

use crate::cp::glob;
use crate::session::Session;
use crate::session::command_error::CopyError;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::model::location::Remote;
use verbatim_engine::model::report::Failure;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Fault, WirePath};

/// Lists a remote folder, or the exports of a server.
pub async fn list(
    remote: &Remote,
    session: SessionOptions,
    recursive: bool,
    mut each: impl FnMut(Entry),
) -> Result<Vec<Failure>, CopyError> {
    let mut session = Session::connect(session).await?;
    let answer = session.stat(&remote.path).await?;
    let mut failures = Vec::new();
    let failure = |path: String, fault| Failure { path, peer: remote.peer(), fault };
    let found = glob::or_matches(&mut session, remote, answer).await?;
    // Matches of a pattern are listed themselves; a named folder is listed by its entries.
    if is_named_folder(remote, &found) {
        let page = |entries: Vec<Entry>, faults: Vec<(WirePath, Fault)>| {
            entries.into_iter().for_each(&mut each);
            failures.extend(faults.into_iter().map(|(path, it)| failure(path.to_string(), it)));
        };
        session.list(&remote.path, recursive, page).await?;
    } else {
        for (source, answer) in found {
            match answer {
                Ok(entry) => each(entry),
                Err(fault) => failures.push(failure(source.to_string(), fault)),
            }
        }
    }
    session.close().await;
    Ok(failures)
}

fn is_named_folder(remote: &Remote, found: &[glob::Found]) -> bool {
    matches!(found, [(source, Ok(entry))]
        if source.path == remote.path && entry.kind == EntryKind::Folder)
}
