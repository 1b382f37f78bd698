//! What the reading server prepares next, within the client's credit: large
//! files first, but not instead of small ones; holes are named, not leased.

use super::{File, ReadServer, Window};
use crate::batch::batches;
use crate::holes::is_whole;
use crate::message::{Holes, ReadReply, WindowHoles, WindowId};
use crate::read::{Prepare, ServerEffect};
use crate::units::{
    PACK_BYTES_MAX, PACK_FILES_MAX, PACKED_FILE_BYTES_MAX, WINDOW_BYTES, WINDOWS_MAX,
};
use crate::{Extent, ExtentSet, FileId};
use std::collections::HashMap;

/// Windows of large files while small ones wait.
const LARGE_WINDOWS_MAX: usize = WINDOWS_MAX / 4 * 3;

/// Large files that are leased in turn: each may have a window.
const LARGE_AT_ONCE: usize = WINDOWS_MAX;

/// What comes next of a large file.
enum Next {
    Holes(Vec<Extent>),
    Data(Extent),
    Find(u64),
    /// The driver is looking.
    Wait,
    Over,
}

impl ReadServer {
    /// Prepares windows as long as there is credit, and closes what is no longer in preparation.
    pub(super) fn advance(&mut self) {
        let windows_max = WINDOWS_MAX.min(self.windows_max.unwrap_or(WINDOWS_MAX));
        let window_bytes = self.window_bytes.unwrap_or(WINDOW_BYTES);
        while self.windows.len() < windows_max && !self.paused {
            if let Some(pieces) = self.fresh.pop_front() {
                let packed = self.is_packed(&pieces);
                self.prepare(pieces, packed, true);
            } else if !self.small.is_empty() && self.is_small_next() {
                let pieces = self.next_pack();
                self.prepare(pieces, true, false);
            } else if let Some(&id) = self.large.front() {
                let file = self.files.get_mut(&id).expect("closed files leave the queue");
                match file.next(window_bytes) {
                    Next::Holes(extents) => self.name_holes(id, extents),
                    Next::Data(extent) => {
                        self.prepare(vec![(id, extent)], false, false);
                        self.take_turns();
                    }
                    Next::Find(from) => {
                        file.preparing += 1;
                        self.effects.push_back(ServerEffect::FindHoles { file: id, from });
                    }
                    Next::Wait => break,
                    Next::Over => drop(self.large.pop_front()),
                }
            } else {
                break;
            }
        }
        let files = &self.files;
        let ready =
            |(id, _): &mut (FileId, bool)| files.get(id).is_none_or(|file| file.preparing == 0);
        let mut closing: Vec<_> = self.to_close.extract_if(.., ready).collect();
        for files in batches(&mut closing) {
            self.effects.push_back(ServerEffect::Close(files));
        }
    }

    /// The next window is one of the next large file, so that links need not write the same one.
    fn take_turns(&mut self) {
        let count = self.large.len().min(LARGE_AT_ONCE);
        self.large.make_contiguous()[..count].rotate_left(1);
    }

    /// Large files go first, so that none of them is left alone at the end; small ones always
    /// have some windows too.
    fn is_small_next(&self) -> bool {
        let large = self.windows.values().filter(|window| !window.packed).count();
        self.large.is_empty() || large >= LARGE_WINDOWS_MAX
    }

    /// Whether these pieces are whole small files, which are staged, not mapped.
    fn is_packed(&self, pieces: &[(FileId, Extent)]) -> bool {
        pieces.iter().all(|(id, extent)| {
            extent.offset == 0
                && extent.len <= PACKED_FILE_BYTES_MAX
                && self.files.get(id).is_some_and(|file| file.size == extent.len)
        })
    }

    fn next_pack(&mut self) -> Vec<(FileId, Extent)> {
        let mut pieces = Vec::new();
        let mut bytes = 0;
        while let Some(&id) = self.small.front() {
            let file = self.files.get_mut(&id).expect("closed files leave the queue");
            bytes += file.size;
            if pieces.len() == PACK_FILES_MAX || bytes > u64::from(PACK_BYTES_MAX) {
                break;
            }
            file.unleased = ExtentSet::new();
            file.queued = false;
            pieces.push((id, Extent::new(0, file.size)));
            self.small.pop_front();
        }
        pieces
    }

    fn next_id(&mut self) -> WindowId {
        self.next_window += 1;
        WindowId(self.next_window - 1)
    }

    /// Names holes to the client; the list takes the credit of a window until it is released.
    fn name_holes(&mut self, file: FileId, extents: Vec<Extent>) {
        let window = self.next_id();
        self.windows.insert(
            window,
            Window { pieces: Vec::new(), packed: false, leased: true, is_holes: true },
        );
        let holes = WindowHoles { window, holes: Holes { file, extents } };
        self.effects.push_back(ServerEffect::Send(ReadReply::Holes(holes)));
    }

    fn prepare(&mut self, pieces: Vec<(FileId, Extent)>, packed: bool, fresh: bool) {
        let window = self.next_id();
        for (id, _) in &pieces {
            self.files.get_mut(id).expect("closed files leave the queue").preparing += 1;
        }
        let made = Window { pieces: pieces.clone(), packed, leased: false, is_holes: false };
        self.windows.insert(window, made);
        let prepare = Prepare { window, pieces, packed, fresh };
        self.effects.push_back(ServerEffect::Prepare(prepare));
    }
}

impl File {
    fn next(&mut self, window_bytes: u64) -> Next {
        if let Some(extents) = self.search.next_list() {
            return Next::Holes(extents);
        }
        if let Some(extent) = self.unleased.take_first_below(window_bytes, self.search.until()) {
            return Next::Data(extent);
        }
        match self.search.question(self.size) {
            Some(from) => Next::Find(from),
            None if self.search.is_over(self.size) => Next::Over,
            None => Next::Wait,
        }
    }
}

/// Whether these are parts of a window: whole grains of its pieces, each once, and no more than
/// there can be. Otherwise a client could have a queue grow with every message.
pub(super) fn are_parts(parts: &[(FileId, Extent)], window: &[(FileId, Extent)]) -> bool {
    let is_part = |(file, part): (FileId, Extent)| {
        window.iter().any(|&(of, whole)| {
            let end = whole.end().filter(|_| file == of && part.offset >= whole.offset);
            end.is_some_and(|end| is_whole(part, end))
        })
    };
    let mut seen: HashMap<FileId, ExtentSet> = HashMap::new();
    (1..=PACK_FILES_MAX).contains(&parts.len())
        && parts.iter().all(|&(file, part)| {
            let seen = seen.entry(file).or_default();
            let is_good = is_part((file, part)) && !seen.intersects(part);
            if is_good {
                seen.insert(part);
            }
            is_good
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileInfo, OpenFile, ReadRequest, Region};
    use crate::read::Prepared;
    use crate::units::{GRAIN_BYTES, RANGES_MAX};
    use crate::{Code, Digest, Fault, Survey, WirePath};

    /// A machine with open files of these sizes.
    fn opened(sizes: &[u64]) -> ReadServer {
        let mut machine = ReadServer::new();
        open_files(&mut machine, sizes);
        machine
    }

    fn open_files(machine: &mut ReadServer, sizes: &[u64]) {
        let open = |file| OpenFile { file: FileId(file), path: WirePath::root(), have: vec![] };
        let files = (0..sizes.len() as u32).map(open).collect();
        machine.request(ReadRequest::Open { files });
        assert!(matches!(machine.next_effect(), Some(ServerEffect::Open(_))));
        let info =
            |size| FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
        let survey = |size| Survey { holes: Vec::new(), until: size };
        let answers =
            (0..).zip(sizes).map(|(id, &size)| (FileId(id), Ok((info(size), survey(size)))));
        machine.opened(answers.collect());
    }

    /// Leases a window that was to be made.
    fn lease(machine: &mut ReadServer, prepare: &Prepare) {
        let digests = |&(_, extent): &(FileId, Extent)| {
            Ok(vec![Digest([0; 32]); extent.len.div_ceil(GRAIN_BYTES) as usize])
        };
        let pieces = prepare.pieces.iter().map(digests).collect();
        let region = Some(Region { key: 1, base: 0 });
        machine.prepared(prepare.window, Prepared { region, rails: Vec::new(), pieces });
    }

    fn prepares(machine: &mut ReadServer) -> Vec<Prepare> {
        std::iter::from_fn(|| machine.next_effect())
            .filter_map(|effect| match effect {
                ServerEffect::Prepare(prepare) => Some(prepare),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_refresh_names_parts_of_its_window_each_once() {
        let part = |file, offset, len| (FileId(file), Extent::new(offset, len));
        let window = [part(0, 4 * GRAIN_BYTES, 3 * GRAIN_BYTES + 5), part(1, 0, 9)];
        assert!(are_parts(&window, &window));
        assert!(are_parts(&[part(0, 5 * GRAIN_BYTES, GRAIN_BYTES), part(1, 0, 9)], &window));
        assert!(are_parts(&[part(0, 7 * GRAIN_BYTES, 5)], &window));
        let wrong = [
            part(0, 3 * GRAIN_BYTES, GRAIN_BYTES),
            part(0, 4 * GRAIN_BYTES, 4 * GRAIN_BYTES),
            part(0, 4 * GRAIN_BYTES, 512),
            part(0, 5 * GRAIN_BYTES, 0),
            part(0, 1 << 56, 0),
            part(0, u64::MAX, GRAIN_BYTES),
            part(2, 0, 9),
        ];
        for wrong in wrong {
            assert!(!are_parts(&[wrong], &window), "{wrong:?}");
        }
        assert!(!are_parts(&[], &window) && !are_parts(&[window[1], window[1]], &window));
    }

    /// A window outlives its file, and the file's number may be used again: what the window had
    /// of the old one is no range of the new.
    #[test]
    fn a_window_of_an_older_file_of_the_number_is_not_made_anew() {
        for size in [10, WINDOW_BYTES] {
            let mut machine = opened(&[WINDOW_BYTES]);
            let old = prepares(&mut machine).remove(0);
            lease(&mut machine, &old);
            machine.request(ReadRequest::Close { files: vec![FileId(0)], describe: false });
            machine.closed(vec![(FileId(0), Ok(None))]);
            while machine.next_effect().is_some() {}
            open_files(&mut machine, &[size]);
            let new = prepares(&mut machine).remove(0);
            let pieces = vec![(FileId(0), Extent::new(WINDOW_BYTES - GRAIN_BYTES, GRAIN_BYTES))];
            machine.request(ReadRequest::Refresh { window: old.window, pieces });
            assert_eq!(machine.next_effect(), Some(ServerEffect::Retire(old.window)));
            assert_eq!(machine.next_effect(), None, "a range of a file that is gone");
            // One of its own is.
            lease(&mut machine, &new);
            machine
                .request(ReadRequest::Refresh { window: new.window, pieces: new.pieces.clone() });
            let again = prepares(&mut machine).remove(0);
            assert!(again.fresh && again.pieces == new.pieces, "{again:?}");
        }
    }

    #[test]
    fn what_a_client_has_is_whole_grains_and_not_endlessly_many() {
        let open = |have| OpenFile { file: FileId(0), path: WirePath::root(), have };
        let mut machine = ReadServer::new();
        machine.request(ReadRequest::Open { files: vec![open(vec![Extent::new(1, 5)])] });
        let size = 2 * GRAIN_BYTES;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: size, version: None };
        machine.opened(vec![(FileId(0), Ok((info, Survey::dense(size))))]);
        machine.advance();
        let asked = prepares(&mut machine).remove(0);
        assert_eq!(asked.pieces, [(FileId(0), Extent::new(0, size))], "no part of a grain counts");

        let mut machine = ReadServer::new();
        let many = (0..=RANGES_MAX as u64).map(|at| Extent::new(2 * at * GRAIN_BYTES, GRAIN_BYTES));
        machine.request(ReadRequest::Open { files: vec![open(many.collect())] });
        let refused = machine.next_effect();
        let limit = |fault: &Fault| fault.code == Code::Limit;
        assert!(matches!(&refused, Some(ServerEffect::Broken(it)) if limit(it)), "{refused:?}");
    }

    #[test]
    fn a_large_file_is_leased_before_small_ones_but_not_instead_of_them() {
        let sizes: Vec<u64> = (0..200).map(|_| GRAIN_BYTES).chain([1 << 30]).collect();
        let mut machine = opened(&sizes);
        let packed: Vec<bool> = prepares(&mut machine).iter().map(|it| it.packed).collect();
        let expected: Vec<bool> = (0..WINDOWS_MAX).map(|at| at >= LARGE_WINDOWS_MAX).collect();
        assert_eq!(packed, expected);
    }

    #[test]
    fn large_files_are_leased_in_turn() {
        let mut machine = opened(&[1 << 30; 3]);
        let asked = prepares(&mut machine);
        let files: Vec<u32> = asked.iter().map(|it| it.pieces[0].0.0).collect();
        let expected: Vec<u32> = (0..WINDOWS_MAX as u32).map(|at| at % 3).collect();
        assert_eq!(files, expected);
        assert_eq!(asked[3].pieces[0].1.offset, WINDOW_BYTES, "it goes on where it was");
    }

    /// A driver that has room for three windows of a mebibyte at a time, and gives them back as
    /// they come: everything is leased once, in short windows, and nothing is asked for twice.
    #[test]
    fn what_is_put_off_is_asked_for_again_in_shorter_windows() {
        const ROOM: u64 = 3 << 20;
        let sizes: Vec<u64> = (0..9).map(|_| GRAIN_BYTES).chain([20 << 20, 5 << 20]).collect();
        let mut machine = opened(&sizes);
        let mut covered: Vec<ExtentSet> = sizes.iter().map(|_| ExtentSet::new()).collect();
        let mut out: Vec<(WindowId, u64)> = Vec::new();
        for turn in 0.. {
            assert!(turn < 1000, "it never ends");
            let asked = prepares(&mut machine);
            if asked.is_empty() && out.is_empty() {
                break;
            }
            for prepare in asked {
                let bytes: u64 = prepare.pieces.iter().map(|(_, extent)| extent.len).sum();
                let held: u64 = out.iter().map(|(_, bytes)| bytes).sum();
                if held + bytes > ROOM {
                    machine.put_off(prepare);
                    continue;
                }
                for (file, extent) in &prepare.pieces {
                    let seen = &mut covered[file.0 as usize];
                    assert!(!seen.intersects(*extent), "{extent:?} is leased twice");
                    seen.insert(*extent);
                }
                out.push((prepare.window, bytes));
                lease(&mut machine, &prepare);
            }
            if !out.is_empty() {
                let (window, _) = out.remove(0);
                machine.request(ReadRequest::Release { windows: vec![window] });
            }
            machine.lease_windows_of(1 << 20);
        }
        for (size, seen) in sizes.iter().zip(&covered) {
            assert_eq!(seen.bytes(), *size);
        }
    }

    #[test]
    fn a_file_that_is_closed_while_its_window_waits_ends() {
        let mut machine = opened(&[20 << 20]);
        let asked = prepares(&mut machine);
        machine.request(ReadRequest::Close { files: vec![FileId(0)], describe: false });
        for prepare in asked {
            assert!(machine.next_effect().is_none(), "it is closed while it is prepared");
            machine.put_off(prepare);
        }
        assert_eq!(machine.next_effect(), Some(ServerEffect::Close(vec![(FileId(0), false)])));
        machine.closed(vec![(FileId(0), Ok(None))]);
        assert!(machine.is_idle());
    }

    #[test]
    fn a_small_file_that_is_all_hole_is_closed_before_its_turn() {
        let mut machine = ReadServer { windows_max: Some(0), ..ReadServer::new() };
        let open = OpenFile { file: FileId(0), path: WirePath::root(), have: vec![] };
        machine.request(ReadRequest::Open { files: vec![open] });
        let size = GRAIN_BYTES;
        let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated: 0, version: None };
        let survey = Survey { holes: vec![Extent::new(0, size)], until: size };
        machine.opened(vec![(FileId(0), Ok((info, survey)))]);
        machine.request(ReadRequest::Close { files: vec![FileId(0)], describe: false });
        machine.closed(vec![(FileId(0), Ok(None))]);
        machine.windows_max = None;
        machine.advance();
        assert_eq!(prepares(&mut machine), []);
        assert!(machine.is_idle());
    }
}
