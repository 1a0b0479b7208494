//! How values are packed that cannot derive it. Packed bytes have no field names, so that nothing can be
//! left out of them.

/// A value that leaves fields out of its JSON, as its JSON text.
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

/// The same for an optional value.
pub(crate) mod as_json_option {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let text = value.as_ref().map(serde_json::to_string).transpose();
        text.map_err(S::Error::custom)?.serialize(to)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<&str>::deserialize(from)?;
        let read = text.map(serde_json::from_str).transpose();
        read.map_err(D::Error::custom)
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
