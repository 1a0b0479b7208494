//! Lists that stay packed: elements are kept in pages, a page is read when somebody first asks for an
//! element of it, and an element when it is asked for itself; so that a question about one step of
//! thousands costs one page. Knows nothing of what its elements mean.

use std::fmt;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cache::{Place, Sheaf};

/// Something that is packed to bytes and read from them.
pub trait Pack: Sized {
    fn pack(&self, bytes: &mut Vec<u8>);

    /// `None` where the bytes are not what this version packs. No bytes are what nobody wrote.
    fn unpack(bytes: &[u8]) -> Option<Self>;
}

/// Where the pages of a list are read from.
pub(crate) trait Source: Send + Sync {
    /// Page `number`, which was kept at a place.
    fn page(&self, number: usize, place: Place) -> Vec<u8>;
}

/// A list whose elements are read when they are asked for.
#[derive(Clone)]
pub struct List<T> {
    len: usize,
    blocks: Vec<OnceLock<Block<T>>>,
    kept: Option<Pages>,
}

/// The pages of a list, where it is kept.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) places: Vec<Place>,
}

/// The elements of a page: read, written, or still packed.
#[derive(Clone)]
struct Block<T> {
    page: Vec<u8>,
    elements: Box<[OnceLock<Box<T>>]>,
    /// The page has some of them as they were.
    is_written: bool,
    /// So has what is kept of it.
    is_unkept: bool,
}

/// Elements of a page. It begins with where each of them starts and the last one ends.
const PAGE: usize = 64;
const WIDTH: usize = size_of::<u32>();

/// Which pages are packed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of them.
    Whole,
    /// Those with a change; the others stay where they are.
    Changed,
}

/// How many pages so many elements have.
pub(crate) fn pages_for(len: usize) -> usize {
    len.div_ceil(PAGE)
}

impl<T: Pack> List<T> {
    /// So many elements, in pages that are kept.
    pub(crate) fn kept(len: usize, kept: Pages) -> List<T> {
        List { kept: Some(kept), ..List::of_nothing(len) }
    }

    /// Elements that have no bytes, all of them.
    pub(crate) fn of_nothing(len: usize) -> List<T> {
        List { len, blocks: unread(pages_for(len)), kept: None }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        let block = self.block(index / PAGE).filter(|_| index < self.len)?;
        Some(block.element(index % PAGE))
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.get(index)?;
        let block = self.blocks.get_mut(index / PAGE)?.get_mut()?;
        block.is_written = true;
        block.is_unkept = true;
        block.elements[index % PAGE].get_mut().map(|element| &mut **element)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator + Clone {
        (0..self.len()).map(|index| &self[index])
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.iter().for_each(drop);
        let blocks = self.blocks.iter_mut().filter_map(OnceLock::get_mut);
        let elements = blocks.flat_map(|block| {
            block.is_written = true;
            block.is_unkept = true;
            block.elements.iter_mut()
        });
        elements.filter_map(OnceLock::get_mut).map(|element| &mut **element)
    }

    fn block(&self, number: usize) -> Option<&Block<T>> {
        let read = || Block {
            page: self.read(number),
            elements: unread(PAGE).into(),
            is_written: false,
            is_unkept: false,
        };
        Some(self.blocks.get(number)?.get_or_init(read))
    }

    fn read(&self, number: usize) -> Vec<u8> {
        match &self.kept {
            Some(Pages { source, places }) => match places[number] {
                Place::EMPTY => Vec::new(),
                place => source.page(number, place),
            },
            None => Vec::new(),
        }
    }

    /// The bytes of a page as its elements are now.
    pub(crate) fn page(&self, number: usize) -> Vec<u8> {
        let Some(block) = self.blocks.get(number) else { return Vec::new() };
        let Some(block) = block.get() else { return self.read(number) };
        if !block.is_written {
            return block.page.clone();
        }
        let len = PAGE.min(self.len - number * PAGE);
        let first = WIDTH * (len + 1);
        let mut page = vec![0; first];
        for index in 0..len {
            match block.elements[index].get() {
                Some(element) => element.pack(&mut page),
                None => page.extend_from_slice(block.packed(index).unwrap_or_default()),
            }
            let end = u32::try_from(page.len()).expect("a page is smaller than 4 GiB");
            page[WIDTH * (index + 1)..][..WIDTH].copy_from_slice(&end.to_le_bytes());
        }
        let nothing = page.len() == first;
        page[..WIDTH].copy_from_slice(&(first as u32).to_le_bytes());
        if nothing { Vec::new() } else { page }
    }

    /// Packs what is to be packed; says where every page is then.
    pub(crate) fn pack(&self, sheaf: &mut Sheaf, extent: Extent) -> Vec<Place> {
        let place = |number: usize| {
            let places = self.kept.as_ref().map(|kept| &kept.places)?;
            let unkept = self.blocks[number].get().is_some_and(|block| block.is_unkept);
            (extent == Extent::Changed && !unkept).then(|| places[number])
        };
        let pages = (0..self.blocks.len())
            .map(|number| place(number).unwrap_or_else(|| sheaf.page(&self.page(number))));
        pages.collect()
    }

    /// Its pages are kept as they are now.
    pub(crate) fn is_kept(&mut self, kept: Pages) {
        for block in self.blocks.iter_mut().filter_map(OnceLock::get_mut) {
            block.is_unkept = false;
        }
        self.kept = Some(kept);
    }
}

impl<T: Pack> Block<T> {
    fn element(&self, index: usize) -> &T {
        self.elements[index].get_or_init(|| {
            let read = self.packed(index).and_then(T::unpack);
            // Whoever hands bytes over has checked their seal and version.
            Box::new(read.expect("packed bytes of this version can be read back"))
        })
    }

    /// From its start up to the next.
    fn packed(&self, index: usize) -> Option<&[u8]> {
        if self.page.is_empty() {
            return Some(&[]);
        }
        let start = |index: usize| {
            let bytes = self.page.get(WIDTH * index..WIDTH * (index + 1))?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
        };
        self.page.get(start(index)?..start(index + 1)?)
    }
}

fn unread<T>(len: usize) -> Vec<OnceLock<T>> {
    std::iter::repeat_with(OnceLock::new).take(len).collect()
}

impl<T: Pack> Index<usize> for List<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.get(index).expect("an index within the list")
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(all: Vec<T>) -> List<T> {
        let len = all.len();
        let mut all = all.into_iter().map(|element| OnceLock::from(Box::new(element)));
        let blocks = (0..pages_for(len)).map(|_| {
            let mut elements: Vec<_> = all.by_ref().take(PAGE).collect();
            elements.resize_with(PAGE, OnceLock::new);
            let elements = elements.into();
            OnceLock::from(Block { page: Vec::new(), elements, is_written: true, is_unkept: true })
        });
        List { len, blocks: blocks.collect(), kept: None }
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> List<T> {
        all.into_iter().collect::<Vec<T>>().into()
    }
}

impl<'a, T: Pack> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = Box<dyn Iterator<Item = &'a T> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl<'a, T: Pack> IntoIterator for &'a mut List<T> {
    type Item = &'a mut T;
    type IntoIter = Box<dyn Iterator<Item = &'a mut T> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter_mut())
    }
}

impl<T: Pack + fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Pack + PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &List<T>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Pack + Eq> Eq for List<T> {}

impl<T: Pack + Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<List<T>, D::Error> {
        Ok(Vec::deserialize(from)?.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Word(String);

    impl Pack for Word {
        fn pack(&self, bytes: &mut Vec<u8>) {
            bytes.extend(self.0.as_bytes());
        }

        fn unpack(bytes: &[u8]) -> Option<Word> {
            String::from_utf8(bytes.to_vec()).ok().map(Word)
        }
    }

    /// Pages one after another, and which of them were asked for.
    #[derive(Default)]
    struct Book {
        bytes: Vec<u8>,
        asked: Mutex<Vec<usize>>,
    }

    impl Source for Book {
        fn page(&self, number: usize, place: Place) -> Vec<u8> {
            self.asked.lock().expect("one reader").push(number);
            place.of(&self.bytes).expect("a page that was kept").to_vec()
        }
    }

    fn word(text: &str) -> Word {
        Word(text.to_owned())
    }

    fn words(count: usize) -> List<Word> {
        (0..count).map(|n| word(&format!("word {n}"))).collect()
    }

    /// The list as somebody else reads it from the pages of `book` and those that are packed now.
    fn reopened(list: &List<Word>, book: &Book, extent: Extent) -> (List<Word>, Arc<Book>) {
        let mut sheaf = Sheaf::after(book.bytes.len() as u64);
        let places = list.pack(&mut sheaf, extent);
        let bytes = [book.bytes.clone(), sheaf.into_bytes()].concat();
        let book = Arc::new(Book { bytes, ..Book::default() });
        let source: Arc<dyn Source> = book.clone();
        (List::kept(list.len(), Pages { source, places }), book)
    }

    #[test]
    fn what_was_packed_reads_back_and_only_the_pages_asked_for_are_read() {
        let list = words(3 * PAGE + 7);
        let (again, book) = reopened(&list, &Book::default(), Extent::Whole);
        let last = 3 * PAGE + 6;
        assert_eq!((again.get(last), again.get(last + 1)), (list.get(last), None));
        assert_eq!(again[PAGE + 1], list[PAGE + 1]);
        assert_eq!(again[PAGE], list[PAGE]);
        assert_eq!(*book.asked.lock().expect("one reader"), [3, 1]);
        assert_eq!(again, list);
    }

    #[test]
    fn only_changed_pages_are_packed_again_until_all_have_to_be() {
        let (mut list, book) = reopened(&words(4 * PAGE), &Book::default(), Extent::Whole);
        *list.get_mut(PAGE + 3).expect("it is there") = word("another");
        let expected: Vec<Word> = list.iter().cloned().collect();
        let (again, more) = reopened(&list, &book, Extent::Changed);
        let page = book.bytes.len() / 4;
        assert!(more.bytes.len() < book.bytes.len() + 2 * page, "one page was added");
        assert_eq!(again.iter().cloned().collect::<Vec<_>>(), expected);
        let (again, _) = reopened(&again, &Book::default(), Extent::Whole);
        assert_eq!(again.iter().cloned().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_was_kept_meanwhile_is_not_packed_again_but_is_as_it_was_written() {
        let (mut list, book) = reopened(&words(2 * PAGE), &Book::default(), Extent::Whole);
        *list.get_mut(0).expect("it is there") = word("another");
        let (kept, book) = reopened(&list, &book, Extent::Changed);
        list.is_kept(kept.kept.expect("it is kept"));
        let (same, after) = reopened(&list, &book, Extent::Changed);
        assert_eq!(after.bytes.len(), book.bytes.len(), "nothing was to be kept");
        assert_eq!(same[0], word("another"));
        let (whole, _) = reopened(&list, &Book::default(), Extent::Whole);
        assert_eq!((&whole[0], &whole[1]), (&word("another"), &word("word 1")));
    }

    #[test]
    fn packing_copies_what_nobody_asked_for() {
        // Not valid text: reading it would panic.
        let bytes =
            [&12_u32.to_le_bytes()[..], &13_u32.to_le_bytes(), &16_u32.to_le_bytes(), b"\xffone"];
        let mut sheaf = Sheaf::after(0);
        let places = vec![sheaf.page(&bytes.concat())];
        let source = Arc::new(Book { bytes: sheaf.into_bytes(), ..Book::default() });
        let mut list: List<Word> = List::kept(2, Pages { source, places });
        *list.get_mut(1).expect("the second") = word("two");
        assert!(list.page(0).ends_with(b"\xfftwo"));
    }

    #[test]
    fn elements_without_bytes_are_what_no_bytes_mean() {
        let list: List<Word> = List::of_nothing(3);
        assert_eq!(list, ["", "", ""].map(word).into_iter().collect());
        let (again, book) = reopened(&list, &Book::default(), Extent::Whole);
        assert_eq!((again, book.bytes.len()), (list, 0));
    }
}
