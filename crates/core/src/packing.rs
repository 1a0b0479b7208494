//! How the parts of a run are packed for the run cache: lists item by item, and what cannot derive it.

use std::fmt;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list whose items stay packed until they are asked for, so that a verb pays for the few steps that it
/// is about. Copies share the items.
pub struct PackedList<T> {
    items: Vec<OnceLock<Arc<T>>>,
    packed: Arc<Packed>,
}

/// The items of a list as they were unpacked with it, one after the other.
#[derive(Default)]
struct Packed {
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl Packed {
    fn item(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }
}

/// What can be an item of a [`PackedList`].
pub trait Pack: Serialize + DeserializeOwned + Clone {
    fn pack(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data can be packed")
    }

    /// Reads back what [`Pack::pack`] made.
    fn unpack(packed: &[u8]) -> Self {
        postcard::from_bytes(packed).expect("the checksum and the version of the cache are right")
    }
}

impl<T: Pack> PackedList<T> {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        (0..self.len()).map(|index| &self[index])
    }

    pub(crate) fn shared(&self, index: usize) -> &Arc<T> {
        self.items[index].get_or_init(|| Arc::new(T::unpack(self.packed.item(index))))
    }

    pub(crate) fn push(&mut self, item: Arc<T>) {
        self.items.push(OnceLock::from(item));
    }

    /// The item for changing it. Copies of the list keep theirs.
    pub(crate) fn make_mut(&mut self, index: usize) -> &mut T {
        self.shared(index);
        Arc::make_mut(self.items[index].get_mut().expect("it has just been unpacked"))
    }
}

impl<T: Pack> Index<usize> for PackedList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.shared(index)
    }
}

impl<T> FromIterator<Arc<T>> for PackedList<T> {
    fn from_iter<I: IntoIterator<Item = Arc<T>>>(items: I) -> PackedList<T> {
        let items = items.into_iter().map(OnceLock::from).collect();
        PackedList { items, packed: Arc::default() }
    }
}

impl<T> FromIterator<T> for PackedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> PackedList<T> {
        items.into_iter().map(Arc::new).collect()
    }
}

impl<T> Clone for PackedList<T> {
    fn clone(&self) -> PackedList<T> {
        PackedList { items: self.items.clone(), packed: Arc::clone(&self.packed) }
    }
}

impl<T: Pack + PartialEq> PartialEq for PackedList<T> {
    fn eq(&self, other: &PackedList<T>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Pack + Eq> Eq for PackedList<T> {}

impl<T: Pack + fmt::Debug> fmt::Debug for PackedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// As text an ordinary list; else the length of each item and all of their bytes.
impl<T: Pack> Serialize for PackedList<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return to.collect_seq(self.iter());
        }
        let mut all = Packed::default();
        for (index, item) in self.items.iter().enumerate() {
            match item.get() {
                Some(item) => all.bytes.extend(item.pack()),
                None => all.bytes.extend(self.packed.item(index)),
            }
            all.ends.push(all.bytes.len());
        }
        (all.ends, Bytes(&all.bytes)).serialize(to)
    }
}

impl<'de, T: Pack> Deserialize<'de> for PackedList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PackedList<T>, D::Error> {
        if from.is_human_readable() {
            return Ok(Vec::<T>::deserialize(from)?.into_iter().collect());
        }
        let (ends, bytes): (Vec<usize>, &[u8]) = Deserialize::deserialize(from)?;
        let items = ends.iter().map(|_| OnceLock::new()).collect();
        Ok(PackedList { items, packed: Arc::new(Packed { ends, bytes: bytes.to_vec() }) })
    }
}

/// Serde takes a slice of bytes for a list of numbers.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

/// A value that leaves fields out of its JSON, which packed bytes cannot, as its JSON text.
pub(crate) mod as_json {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&serde_json::to_string(value).map_err(S::Error::custom)?)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = <&str>::deserialize(from)?;
        serde_json::from_str(text).map_err(D::Error::custom)
    }
}

/// A value that several owners share.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Arc<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}
