//! Lists that stay packed: an element is read from its bytes when somebody first asks for it, so that
//! a question about one step of thousands costs one step. Knows nothing of what its elements mean.

use std::fmt;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Something that is read from packed bytes.
pub trait Unpack: Sized {
    /// `None` where the bytes are not what this version packs.
    fn unpack(bytes: &[u8]) -> Option<Self>;
}

/// A list whose elements are read when they are asked for.
#[derive(Clone)]
pub struct List<T> {
    len: usize,
    /// What was read, written, or never packed. In blocks, because most of them stay empty.
    blocks: Vec<OnceLock<Block<T>>>,
    packed: Slices,
}

type Block<T> = Box<[OnceLock<Box<T>>]>;

const BLOCK: usize = 64;

/// Where the bytes of each element are: from its start up to the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slices {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// One more than there are elements; counted from `from`.
    pub(crate) starts: Numbers,
    pub(crate) from: usize,
}

impl Slices {
    fn of(&self, index: usize) -> Option<&[u8]> {
        if self.starts.len() == 0 {
            return Some(&[]);
        }
        let (start, end) = (self.starts.get(index)?, self.starts.get(index + 1)?);
        self.bytes.get(self.from + start..self.from + end)
    }
}

impl<T: Unpack> List<T> {
    /// As many as there are starts but one.
    pub(crate) fn packed(packed: Slices) -> List<T> {
        let len = packed.starts.len().saturating_sub(1);
        List { packed, ..List::of_nothing(len) }
    }

    /// Elements that have no bytes, all of them.
    pub(crate) fn of_nothing(len: usize) -> List<T> {
        let blocks = unread(len.div_ceil(BLOCK));
        List { len, blocks, packed: Slices::default() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        let block = self.blocks.get(index / BLOCK).filter(|_| index < self.len)?;
        let block = block.get_or_init(|| unread(BLOCK).into());
        Some(block[index % BLOCK].get_or_init(|| Box::new(unpack(&self.packed, index))))
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.get(index)?;
        let block = self.blocks.get_mut(index / BLOCK)?.get_mut()?;
        block[index % BLOCK].get_mut().map(|boxed| &mut **boxed)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator + Clone {
        (0..self.len()).map(|index| &self[index])
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.iter().for_each(drop);
        let blocks = self.blocks.iter_mut().filter_map(OnceLock::get_mut);
        let cells = blocks.flat_map(|block| block.iter_mut());
        cells.filter_map(OnceLock::get_mut).map(|boxed| &mut **boxed)
    }

    /// The bytes of every element one after another, and where each begins; those that nobody asked
    /// for are copied as they are.
    pub(crate) fn pack(&self, pack: impl Fn(&T, &mut Vec<u8>)) -> (Vec<u32>, Vec<u8>) {
        let mut starts = Vec::with_capacity(self.len() + 1);
        let mut bytes = Vec::new();
        starts.push(0);
        for index in 0..self.len() {
            match self.blocks[index / BLOCK].get().and_then(|block| block[index % BLOCK].get()) {
                Some(element) => pack(element, &mut bytes),
                None => bytes.extend_from_slice(self.packed.of(index).unwrap_or_default()),
            }
            starts.push(u32::try_from(bytes.len()).expect("a packed list is smaller than 4 GiB"));
        }
        (starts, bytes)
    }
}

fn unread<T>(len: usize) -> Vec<OnceLock<T>> {
    std::iter::repeat_with(OnceLock::new).take(len).collect()
}

fn unpack<T: Unpack>(packed: &Slices, index: usize) -> T {
    let read = packed.of(index).and_then(T::unpack);
    // Whoever hands bytes over has checked their seal and version.
    read.expect("packed bytes of this version can be read back")
}

impl<T: Unpack> Index<usize> for List<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.get(index).expect("an index within the list")
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(all: Vec<T>) -> List<T> {
        let len = all.len();
        let mut cells = all.into_iter().map(|element| OnceLock::from(Box::new(element)));
        let blocks = (0..len.div_ceil(BLOCK)).map(|_| {
            let mut block: Vec<_> = cells.by_ref().take(BLOCK).collect();
            block.resize_with(BLOCK, OnceLock::new);
            OnceLock::from(Block::from(block))
        });
        List { len, blocks: blocks.collect(), packed: Slices::default() }
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> List<T> {
        all.into_iter().collect::<Vec<T>>().into()
    }
}

impl<'a, T: Unpack> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = Box<dyn Iterator<Item = &'a T> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl<'a, T: Unpack> IntoIterator for &'a mut List<T> {
    type Item = &'a mut T;
    type IntoIter = Box<dyn Iterator<Item = &'a mut T> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter_mut())
    }
}

impl<T: Unpack + fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Unpack + PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &List<T>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Unpack + Eq> Eq for List<T> {}

impl<T: Unpack + Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<List<T>, D::Error> {
        Ok(Vec::deserialize(from)?.into())
    }
}

/// Numbers below 2³² in place in some bytes: reading one reads no other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    bytes: Arc<Vec<u8>>,
    from: usize,
    len: usize,
}

const WIDTH: usize = size_of::<u32>();

impl Numbers {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, index: usize) -> Option<usize> {
        let at = self.from + WIDTH * index;
        let bytes = self.bytes.get(at..at + WIDTH).filter(|_| index < self.len)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    }

    /// Those from one index up to another.
    pub(crate) fn within(&self, from: usize, to: usize) -> impl Iterator<Item = usize> {
        (from..to).filter_map(|index| self.get(index))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.from..self.from + WIDTH * self.len]
    }
}

impl From<Vec<u32>> for Numbers {
    fn from(all: Vec<u32>) -> Numbers {
        let bytes = all.iter().flat_map(|number| number.to_le_bytes()).collect();
        Numbers { bytes: Arc::new(bytes), from: 0, len: all.len() }
    }
}

/// Takes one part after another off some bytes.
pub(crate) struct Parts {
    bytes: Arc<Vec<u8>>,
    at: usize,
}

impl Parts {
    pub(crate) fn new(bytes: Arc<Vec<u8>>, at: usize) -> Parts {
        Parts { bytes, at }
    }

    pub(crate) fn numbers(&mut self, len: usize) -> Option<Numbers> {
        let from = self.at;
        self.at = len.checked_mul(WIDTH)?.checked_add(from)?;
        (self.at <= self.bytes.len()).then(|| Numbers { bytes: Arc::clone(&self.bytes), from, len })
    }

    /// What is left, without a copy: where it begins.
    pub(crate) fn rest(self) -> usize {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Word(String);

    impl Unpack for Word {
        fn unpack(bytes: &[u8]) -> Option<Word> {
            String::from_utf8(bytes.to_vec()).ok().map(Word)
        }
    }

    fn word(text: &str) -> Word {
        Word(text.to_owned())
    }

    fn packed(list: &List<Word>) -> (Vec<u32>, Vec<u8>) {
        list.pack(|word, bytes| bytes.extend(word.0.as_bytes()))
    }

    fn reopened(list: &List<Word>) -> List<Word> {
        let (starts, bytes) = packed(list);
        List::packed(Slices { bytes: Arc::new(bytes), starts: starts.into(), from: 0 })
    }

    #[test]
    fn what_was_packed_reads_back_whoever_asked_for_what() {
        let list: List<Word> = ["", "one", "", "Größe"].map(word).into_iter().collect();
        let long: List<Word> = (0..200).map(|n| word(&n.to_string())).collect();
        assert_eq!(reopened(&long), long);
        assert_eq!((long.get(199), long.get(200)), (Some(&word("199")), None));
        let mut again = reopened(&list);
        assert_eq!(again, list);
        assert_eq!((again.len(), again.get(4)), (4, None));
        *again.get_mut(1).expect("the second") = word("two");
        let again = reopened(&again);
        assert_eq!(
            again.iter().map(|word| word.0.as_str()).collect::<Vec<_>>(),
            ["", "two", "", "Größe"]
        );
    }

    #[test]
    fn packing_copies_what_nobody_asked_for() {
        // Not valid text: reading it would panic.
        let starts = Numbers::from(vec![0, 1, 4]);
        let list: List<Word> =
            List::packed(Slices { bytes: Arc::new(b"\xffone".to_vec()), starts, from: 0 });
        assert_eq!(list[1], word("one"));
        assert_eq!(packed(&list), (vec![0, 1, 4], b"\xffone".to_vec()));
    }

    #[test]
    fn elements_without_bytes_are_what_no_bytes_mean() {
        let list: List<Word> = List::of_nothing(3);
        assert_eq!(list, ["", "", ""].map(word).into_iter().collect());
    }
}
