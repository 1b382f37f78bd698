//! The files of a machine, and which of them were touched since they were last
//! looked at. A machine has thousands of files and an event concerns a few:
//! what may follow from it is looked for among those alone. Whoever gets at a
//! file to change it touches it, so none can be forgotten.

use crate::FileId;
use crate::numbered::FileMap;

/// Files by number.
pub(crate) struct Files<F> {
    all: FileMap<F>,
    /// A file may be here twice, or be gone.
    touched: Vec<FileId>,
}

impl<F> Default for Files<F> {
    fn default() -> Self {
        Self { all: FileMap::default(), touched: Vec::new() }
    }
}

impl<F> Files<F> {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn values(&self) -> impl Iterator<Item = &F> {
        self.all.values()
    }

    pub fn contains_key(&self, id: &FileId) -> bool {
        self.all.contains_key(id)
    }

    pub fn get(&self, id: &FileId) -> Option<&F> {
        self.all.get(id)
    }

    /// Adds a file; returns the one that had its number.
    pub fn insert(&mut self, id: FileId, file: F) -> Option<F> {
        self.touched.push(id);
        self.all.insert(id, file)
    }

    pub fn remove(&mut self, id: &FileId) -> Option<F> {
        self.all.remove(id)
    }

    /// A file to change.
    pub fn get_mut(&mut self, id: &FileId) -> Option<&mut F> {
        let file = self.all.get_mut(id)?;
        self.touched.push(*id);
        Some(file)
    }

    /// A file that is looked at because it was touched.
    pub fn look_at(&mut self, id: FileId) -> Option<&mut F> {
        self.all.get_mut(&id)
    }

    /// Has a file looked at again the next time.
    pub fn touch(&mut self, id: FileId) {
        self.touched.push(id);
    }

    /// Those to look at now, each once, in the order of their numbers.
    pub fn take_touched(&mut self) -> Vec<FileId> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_have_changed_is_looked_at_once() {
        let mut files = Files::default();
        let [a, b, c] = [1, 2, 3].map(FileId);
        for id in [a, b, c] {
            assert_eq!(files.insert(id, 0), None);
        }
        assert_eq!(files.take_touched(), [a, b, c], "what is new");
        assert_eq!(files.take_touched(), []);
        *files.get_mut(&b).expect("there") += 1;
        *files.get_mut(&b).expect("there") += 1;
        assert_eq!(files.get(&a), Some(&0));
        assert_eq!(files.get_mut(&FileId(9)), None);
        *files.look_at(c).expect("there") += 1;
        assert_eq!(files.take_touched(), [b]);
        files.touch(c);
        assert_eq!(files.remove(&c), Some(1));
        assert_eq!(files.take_touched(), [c], "it is gone, and no harm");
        assert!(files.look_at(c).is_none());
    }
}
