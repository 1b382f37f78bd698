//! Which file each link was at last, so that links keep out of each other's way:
//! a kernel lets one writer at a time into a file, and two links that write the
//! same one wait for each other. Pure; asked by the machines of both directions.

use crate::{FileId, LinkId};

/// The file of each link.
#[derive(Default)]
pub(crate) struct Turns {
    at: Vec<(LinkId, FileId)>,
}

impl Turns {
    /// Which of these a link takes, by the file of each: the first of its own file or of one that
    /// no other link is at, else the first.
    pub fn choose(&self, link: LinkId, mut files: impl Iterator<Item = FileId>) -> usize {
        let is_free = |file| self.at.contains(&(link, file)) || !self.has(file);
        files.position(is_free).unwrap_or(0)
    }

    /// A link took something of a file.
    pub fn took(&mut self, link: LinkId, file: FileId) {
        match self.at.iter_mut().find(|(of, _)| *of == link) {
            Some((_, at)) => *at = file,
            None => self.at.push((link, file)),
        }
    }

    /// A link is dead: its file is anyone's.
    pub fn link_down(&mut self, link: LinkId) {
        self.at.retain(|(of, _)| *of != link);
    }

    fn has(&self, file: FileId) -> bool {
        self.at.iter().any(|(_, at)| *at == file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileInfo, Grant, Lease, Piece, ReadReply, Region, Tag, WriteReply};
    use crate::units::GRAIN_BYTES;
    use crate::{Digest, Extent, Survey, WindowId, WirePath, read, write};
    use std::collections::HashSet;
    use std::time::Duration;

    const LINKS: [LinkId; 2] = [LinkId { index: 0, epoch: 0 }, LinkId { index: 1, epoch: 0 }];

    fn choice(turns: &Turns, link: LinkId, files: &[u32]) -> usize {
        turns.choose(link, files.iter().map(|&file| FileId(file)))
    }

    #[test]
    fn a_link_takes_of_its_own_file_or_of_one_nobody_is_at() {
        let mut turns = Turns::default();
        assert_eq!(choice(&turns, LINKS[0], &[7, 8]), 0);
        turns.took(LINKS[0], FileId(7));
        assert_eq!(choice(&turns, LINKS[0], &[7, 8]), 0, "its own");
        assert_eq!(choice(&turns, LINKS[1], &[7, 7, 8]), 2, "nobody's");
        turns.took(LINKS[1], FileId(8));
        assert_eq!(choice(&turns, LINKS[0], &[8, 9, 7]), 1, "what comes first of both");
        assert_eq!(choice(&turns, LINKS[0], &[8, 8]), 0, "rather another's than nothing");
    }

    #[test]
    fn the_file_of_a_dead_link_is_anyones() {
        let mut turns = Turns::default();
        turns.took(LINKS[0], FileId(7));
        turns.link_down(LINKS[0]);
        assert_eq!(choice(&turns, LINKS[1], &[7, 8]), 0);
    }

    const FILES: [FileId; 2] = [FileId(1), FileId(2)];
    const NOW: Duration = Duration::ZERO;
    const BYTES: u64 = 8 * GRAIN_BYTES;
    const INFO: FileInfo =
        FileInfo { size: BYTES, mode: 0o644, mtime_ns: 0, allocated: BYTES, version: None };

    /// Which link got what, four chunks each: never two of them the same file.
    fn are_apart(went: &[(LinkId, FileId)]) -> bool {
        let pairs: HashSet<_> = went.iter().copied().collect();
        let files: HashSet<_> = pairs.iter().map(|(_, file)| *file).collect();
        went.len() == 8 && pairs.len() == 2 && files.len() == 2
    }

    #[test]
    fn links_fetch_different_files() {
        let mut machine = read::ReadClient::new(read::ClientOptions {
            chunk_bytes: GRAIN_BYTES as u32,
            slots_per_link: 4,
            timeout: Duration::from_secs(1),
            describe: false,
        });
        LINKS.into_iter().for_each(|link| machine.link_up(link));
        for (index, file) in FILES.into_iter().enumerate() {
            machine.open(file, WirePath::root(), None, NOW);
            machine.reply(ReadReply::Opened { files: vec![(file, Ok(INFO))] }, NOW);
            let (extent, digests) = (Extent::new(0, BYTES), vec![Digest([0; 32]); 8]);
            let pieces = vec![Piece { file, extent, digests }];
            let region = Region { key: 1, base: 0 };
            let lease = Lease { window: WindowId(index as u64), region, pieces };
            machine.reply(ReadReply::Lease(lease), NOW);
        }
        machine.advance(NOW);
        let went: Vec<_> = std::iter::from_fn(|| machine.next_effect())
            .filter_map(|effect| match effect {
                read::ClientEffect::Fetch(it) => Some((it.link, it.chunk.pieces[0].file)),
                _ => None,
            })
            .collect();
        assert!(are_apart(&went), "{went:?}");
    }

    #[test]
    fn links_send_different_files() {
        let options = write::ClientOptions {
            chunk_bytes: GRAIN_BYTES as u32,
            timeout: Duration::from_secs(1),
        };
        let mut machine = write::WriteClient::new(options);
        LINKS.into_iter().for_each(|link| machine.link_up(link));
        let region = Region { key: 1, base: 0 };
        let grant = |tag: u32| {
            let link = LINKS[tag as usize % 2];
            Grant { tag: Tag(tag), link, region, bytes: GRAIN_BYTES as u32 }
        };
        let grants = (0..8).map(grant).collect();
        machine.reply(WriteReply::Granted { verdicts: Vec::new(), grants }, NOW);
        for file in FILES {
            machine.create(file, WirePath::root(), INFO, Survey::dense(BYTES), NOW);
        }
        let files = FILES.map(|file| (file, Ok(Vec::new()))).to_vec();
        machine.reply(WriteReply::Created { files }, NOW);
        machine.advance(NOW);
        let went: Vec<_> = std::iter::from_fn(|| machine.next_effect())
            .filter_map(|effect| match effect {
                write::ClientEffect::Post(it) => Some((it.grant.link, it.pieces[0].0)),
                _ => None,
            })
            .collect();
        assert!(are_apart(&went), "{went:?}");
    }
}
