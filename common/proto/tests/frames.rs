//! Batches stay below the largest frame: a message that is too large ends a
//! session, so lists are cut by bytes where what is in them can be large.
//! Metadata is the largest of it; each file here has as much as it may have.

#![forbid(unsafe_code)]

use std::time::Duration;
use verbatim_proto::message::{
    FileInfo, OpenFile, ReadReply, ReadRequest, WriteReply, WriteRequest,
};
use verbatim_proto::meta::Xattr;
use verbatim_proto::read::{self, ReadServer};
use verbatim_proto::units::{BATCH_FILES_MAX, CHUNK_BYTES_DEFAULT, XATTR_BYTES_MAX};
use verbatim_proto::wire::encode;
use verbatim_proto::write::{self, WriteClient};
use verbatim_proto::{Code, Fault, FileId, Kept, Meta, Survey, WirePath};

const FILES: usize = BATCH_FILES_MAX;

fn ids() -> impl Iterator<Item = FileId> {
    (0..FILES as u32).map(FileId)
}

fn kept() -> Kept {
    let xattrs = vec![Xattr { name: b"user.a".to_vec(), value: vec![7; XATTR_BYTES_MAX - 64] }];
    let meta = Meta { xattrs, ..Meta::default() };
    assert_eq!(meta.check(), Ok(()), "as much as there may be");
    Some(Box::new(meta))
}

fn info() -> FileInfo {
    FileInfo { size: 0, mode: 0o644, mtime_ns: 0, allocated: 0, version: None }
}

fn path() -> WirePath {
    WirePath::parse(b"x/a").expect("plain")
}

/// What the reading server answers when a full batch is closed.
fn closed(answer: impl Fn() -> Result<Kept, Fault>) -> Vec<ReadReply> {
    let mut server = ReadServer::new();
    let open = |file| OpenFile { file, path: path(), have: Vec::new() };
    server.request(ReadRequest::Open { files: ids().map(open).collect() });
    server.opened(ids().map(|id| (id, Ok((info(), Survey::dense(0))))).collect());
    server.request(ReadRequest::Close { files: ids().collect(), describe: true });
    server.closed(ids().map(|id| (id, answer())).collect());
    let mut replies = Vec::new();
    while let Some(effect) = server.next_effect() {
        match effect {
            read::ServerEffect::Send(reply @ ReadReply::Closed { .. }) => replies.push(reply),
            read::ServerEffect::Broken(fault) => panic!("{fault}"),
            _ => {}
        }
    }
    replies
}

#[test]
fn metadata_and_faults_of_closed_files_fit_into_frames() {
    for replies in [closed(|| Ok(kept())), closed(|| Err(long_fault()))] {
        let count = |reply: &ReadReply| match reply {
            ReadReply::Closed { files } => files.len(),
            _ => 0,
        };
        assert_eq!(replies.iter().map(count).sum::<usize>(), FILES, "each is answered once");
        replies.iter().for_each(|reply| drop(encode(reply).expect("fits")));
    }
}

/// As long as a fault may be, in letters that take several bytes.
fn long_fault() -> Fault {
    Fault::new(Code::Denied, "\u{20ac}".repeat(40_000))
}

#[test]
fn metadata_of_files_to_commit_fits_into_frames() {
    let (now, timeout) = (Duration::ZERO, Duration::from_secs(10));
    let mut client =
        WriteClient::new(write::ClientOptions { chunk_bytes: CHUNK_BYTES_DEFAULT, timeout });
    ids().for_each(|id| client.create(id, path(), info(), Survey::dense(0), now));
    client.advance(now);
    let created = WriteReply::Created { files: ids().map(|id| (id, Ok(Vec::new()))).collect() };
    client.reply(created, now);
    client.advance(now);
    // All are looked at again in one job, so all are committed at once.
    while let Some(effect) = client.next_effect() {
        if let write::ClientEffect::CheckSource { file, root } = effect {
            client.source_checked(file, root, Ok(kept()));
        }
    }
    client.advance(now);
    let mut committed = 0;
    while let Some(effect) = client.next_effect() {
        if let write::ClientEffect::Send(request @ WriteRequest::Commit { .. }) = effect {
            encode(&request).expect("fits");
            let WriteRequest::Commit { files } = request else { continue };
            committed += files.len();
        }
    }
    assert_eq!(committed, FILES, "each is committed once");
}
