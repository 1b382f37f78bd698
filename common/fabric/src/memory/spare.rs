//! The memory of slots that are written to one after the other, as those of a TCP link
//! are. A slot has some from the first byte that is written to it until that is of no
//! more use, and what was given back last, which is in cache, goes first. So all that
//! arrives goes through one slot's memory where it is used as soon as it is there, and the
//! rest takes none. Called by `SharedSlot`.

use super::pages::Pages;
use super::{FabricError, SharedSlot, mapped};
use std::sync::{Arc, Mutex, PoisonError};

/// As many pages as there are slots of them that have none.
#[derive(Clone, Debug)]
pub struct SparePages {
    /// The last one was used last.
    pages: Arc<Mutex<Vec<Pages>>>,
    len: usize,
}

impl SparePages {
    /// None yet: each slot brings its own, of `len` bytes, at least one.
    pub fn new(len: usize) -> Self {
        Self { pages: Arc::default(), len }
    }

    /// One more slot that has them in turns with the others.
    pub fn slot(&self) -> Result<SharedSlot, FabricError> {
        let pages = mapped(Pages::ordinary(self.len))?;
        // Behind those that were used.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).insert(0, pages);
        Ok(SharedSlot::holding(Held::InTurns(self.clone(), None), self.len))
    }

    fn take(&self) -> Pages {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pages.expect("every slot that has none has brought some")
    }

    fn put(&self, pages: Pages) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).push(pages);
    }
}

/// Whose the memory of a slot is.
#[derive(Debug)]
pub(super) enum Held {
    /// The slot's own, for good.
    Own(Pages),
    /// That of several, in turns; none where nothing was written since it was given back.
    InTurns(SparePages, Option<Pages>),
}

impl Held {
    /// The memory, for as long as the slot has it.
    pub fn pages(&mut self) -> &mut Pages {
        match self {
            Self::Own(pages) => pages,
            Self::InTurns(spare, pages) => pages.get_or_insert_with(|| spare.take()),
        }
    }

    /// Lets others have it, unless it is the slot's own.
    pub fn give_back(&mut self) {
        if let Self::InTurns(spare, pages) = self {
            pages.take().into_iter().for_each(|pages| spare.put(pages));
        }
    }

    /// Makes it the slot's own.
    pub fn keep(&mut self) -> &mut Pages {
        if let Self::InTurns(spare, pages) = self {
            *self = Self::Own(pages.take().unwrap_or_else(|| spare.take()));
        }
        self.pages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(slot: &SharedSlot) -> usize {
        slot.fill_with(0, 1, |bytes| bytes.as_ptr() as usize)
    }

    #[test]
    fn what_was_given_back_is_used_next_and_what_is_in_use_by_nobody_else() {
        let spare = SparePages::new(4096);
        let slots: Vec<_> = (0..3).map(|_| spare.slot().expect("slot")).collect();
        slots[0].copy_in(0, b"first");
        let warm = address(&slots[0]);
        for slot in [1, 2, 0, 1] {
            slots[(slot + 2) % 3].give_back();
            assert_eq!(address(&slots[slot]), warm, "slot {slot} has another");
        }
        // Two at a time are two.
        slots[2].copy_in(0, b"other");
        slots[1].copy_in(0, b"whole");
        assert_ne!(address(&slots[2]), warm);
        let mut out = [0; 5];
        slots[2].copy_out(0, &mut out);
        assert_eq!((&out, address(&slots[1])), (b"other", warm));
        // A slot that is used again without a write has memory too, and none is there twice.
        slots.iter().for_each(SharedSlot::give_back);
        slots.iter().for_each(SharedSlot::give_back);
        let mut all: Vec<_> = slots.iter().map(address).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn what_a_device_knows_stays_where_it_is() {
        for writes in [true, false] {
            let spare = SparePages::new(4096);
            let (known, other) = (spare.slot().expect("slot"), spare.slot().expect("slot"));
            let there = known.lend_to_device(writes) as usize;
            known.give_back();
            assert_ne!(address(&other), there);
            assert_eq!(address(&known), there);
        }
        let own = SharedSlot::new(4096).expect("slot");
        let before = address(&own);
        own.give_back();
        assert_eq!(address(&own), before, "it has no other");
    }
}
