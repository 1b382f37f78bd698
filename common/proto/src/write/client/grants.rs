//! What the server grants: slots to write to, each under a tag of its own. A tag
//! that comes twice would have two flights, and the first of them be forgotten, so
//! tags only ever go up, as the server counts them, and any other ends the session.

use super::links::Links;
use crate::message::{Grant, Tag};
use crate::units::{GRAIN_BYTES, LINKS_MAX, SLOTS_PER_LINK};
use crate::{Code, Fault, LinkId};
use std::collections::VecDeque;

/// All slots of all links.
const GRANTS_MAX: usize = LINKS_MAX * SLOTS_PER_LINK as usize;

/// Grants that nothing is written to yet, in the order they are used.
#[derive(Default)]
pub(super) struct Grants {
    waiting: VecDeque<Grant>,
    last: Option<Tag>,
}

impl Grants {
    /// Takes a grant of the server; one of a link that is dead is of no use.
    pub fn add(&mut self, grant: Grant, links: &Links) -> Result<(), Fault> {
        self.check(&grant)?;
        if self.waiting.len() >= GRANTS_MAX {
            let text = format!("server granted more than {GRANTS_MAX} slots at a time");
            return Err(Fault::new(Code::Protocol, text));
        }
        if !links.is_dead(grant.link) {
            self.use_last(grant);
        }
        Ok(())
    }

    /// The next grant whose link can be written to.
    pub fn next(&mut self, links: &Links) -> Option<Grant> {
        let usable = self.waiting.iter().position(|grant| links.is_up(grant.link))?;
        self.waiting.remove(usable)
    }

    /// Takes one back that nothing was written to, to be used before or behind the others.
    pub fn use_first(&mut self, grant: Grant) {
        self.waiting.push_front(grant);
    }

    pub fn use_last(&mut self, grant: Grant) {
        self.waiting.push_back(grant);
    }

    pub fn forget_link(&mut self, link: LinkId) {
        self.waiting.retain(|grant| grant.link != link);
    }

    fn check(&mut self, grant: &Grant) -> Result<(), Fault> {
        let protocol = |text| Err(Fault::new(Code::Protocol, text));
        if u64::from(grant.bytes) < GRAIN_BYTES {
            return protocol("server granted less than a grain".to_owned());
        }
        let Tag(tag) = grant.tag;
        match self.last.replace(grant.tag) {
            Some(Tag(last)) if tag <= last => {
                protocol(format!("server granted tag {tag} again: those up to {last} are used"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileId, FileInfo, Region, WriteReply};
    use crate::units::CHUNK_BYTES_DEFAULT;
    use crate::write::WriteClient;
    use crate::write::types::{ClientEffect, ClientOptions};
    use crate::{Extent, Survey, WirePath};
    use std::time::Duration;

    const NOW: Duration = Duration::ZERO;
    const LINK: LinkId = LinkId { index: 0, epoch: 0 };
    const OTHER: LinkId = LinkId { index: 1, epoch: 0 };

    /// A machine that asked for a file of 8 MiB to be made.
    fn creating() -> WriteClient {
        let timeout = Duration::from_secs(10);
        let options = ClientOptions { chunk_bytes: CHUNK_BYTES_DEFAULT, timeout };
        let mut machine = WriteClient::new(options);
        let size = 8 << 20;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
        machine.create(FileId(0), WirePath::root(), info, Survey::dense(size), NOW);
        machine
    }

    /// A machine that sends it over two links.
    fn sending() -> WriteClient {
        let mut machine = creating();
        [LINK, OTHER].into_iter().for_each(|link| machine.link_up(link));
        machine.reply(WriteReply::Created { files: vec![(FileId(0), Ok(Vec::new()))] }, NOW);
        machine
    }

    #[test]
    fn what_a_server_has_of_a_file_is_whole_grains() {
        let mut machine = creating();
        let part = vec![Extent::new(GRAIN_BYTES, 5)];
        machine.reply(WriteReply::Created { files: vec![(FileId(0), Ok(part))] }, NOW);
        let mut effects = std::iter::from_fn(|| machine.next_effect());
        let broken = effects.find(|effect| matches!(effect, ClientEffect::Broken(_)));
        assert!(broken.is_some(), "a part of a grain cannot be hashed");
    }

    /// What the machine does when these are granted in one message: the tags it uses, or why not.
    fn grant(machine: &mut WriteClient, tags: &[(u32, LinkId)]) -> Result<Vec<u32>, Fault> {
        let region = Region { key: 1, base: 0 };
        let grant = |&(tag, link)| Grant { tag: Tag(tag), link, region, bytes: 1 << 20 };
        let grants = tags.iter().map(grant).collect();
        machine.reply(WriteReply::Granted { verdicts: Vec::new(), grants }, NOW);
        machine.advance(NOW);
        let mut used = Vec::new();
        while let Some(effect) = machine.next_effect() {
            match effect {
                ClientEffect::Broken(fault) => return Err(fault),
                ClientEffect::Post(post) => used.push(post.grant.tag.0),
                _ => {}
            }
        }
        Ok(used)
    }

    /// What a session ends with when these are granted one after the other.
    fn refusal(before: &[(u32, LinkId)], last: (u32, LinkId)) -> String {
        let mut machine = sending();
        let used = grant(&mut machine, before).expect("nothing is wrong so far");
        assert_eq!(used.len(), before.len());
        let fault = grant(&mut machine, &[last]).expect_err("it was used before");
        assert_eq!(fault.code, Code::Protocol);
        fault.text
    }

    #[test]
    fn a_server_grants_no_more_slots_than_there_can_be() {
        let mut machine = sending();
        let nowhere = |tag| (tag, LinkId { index: 999, epoch: 0 });
        let most: Vec<_> = (0..GRANTS_MAX as u32).map(nowhere).collect();
        assert_eq!(grant(&mut machine, &most), Ok(Vec::new()), "of a link that is not there");
        let fault = grant(&mut machine, &[(GRANTS_MAX as u32, LINK)]).expect_err("too many");
        assert_eq!(fault.code, Code::Protocol);
    }

    #[test]
    fn a_tag_that_is_granted_twice_ends_the_session() {
        assert_eq!(
            refusal(&[(0, LINK)], (0, LINK)),
            "server granted tag 0 again: those up to 0 are used"
        );
        assert_eq!(
            refusal(&[(7, LINK)], (7, OTHER)),
            "server granted tag 7 again: those up to 7 are used"
        );
        let text = refusal(&[(5, LINK), (6, OTHER)], (5, OTHER));
        assert_eq!(text, "server granted tag 5 again: those up to 6 are used");
        let twice = grant(&mut sending(), &[(3, LINK), (3, LINK)]);
        assert!(twice.is_err(), "both in one message");
    }

    #[test]
    fn a_tag_of_a_link_that_died_is_used_up_as_well() {
        let mut machine = sending();
        machine.link_down(OTHER, NOW);
        assert_eq!(grant(&mut machine, &[(1, LINK), (2, OTHER), (4, LINK)]), Ok(vec![1, 4]));
        machine.link_down(LINK, NOW);
        machine.fenced(LINK);
        assert!(grant(&mut machine, &[(4, LINK)]).is_err(), "it was fenced, and not forgotten");
    }
}
