//! An event as the JSON body of a record, and back: one flat object, `{"v":1,"event":"failed","step":…,
//! "fence":7,…}`. Every fold reads every body, so a variant is read straight from the text once its name is
//! known; serde's own tags and flattening would copy every field first.

use std::borrow::Cow;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, VariantAccess, Visitor,
};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::Error;

use super::{BadEvent, EVENT_VERSION, Event, Under};
use crate::ids::{Fence, StepRef};

/// What is read first. Only what happened under a claim has a step and a fence here.
#[derive(Deserialize)]
struct Start<'a> {
    v: u32,
    #[serde(borrow)]
    event: Cow<'a, str>,
    step: Option<StepRef>,
    fence: Option<Fence>,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

pub(super) fn read(body: &[u8]) -> Result<Event, BadEvent> {
    let unreadable = |error: Error| BadEvent::Unreadable(error.to_string());
    let start = serde_json::from_slice::<Start<'_>>(body);
    // Whatever else a newer version has changed, it is called newer.
    let found = start.as_ref().map_or_else(|_| version(body), |start| start.v);
    if found > EVENT_VERSION {
        return Err(BadEvent::Newer { found });
    }
    let Start { event, step, fence, .. } = start.map_err(unreadable)?;
    let named = Named { name: &event, body };
    let event = match (step, fence) {
        (Some(step), Some(fence)) => {
            Deserialize::deserialize(named).map(|fact| Event::Under(Under { step, fence }, fact))
        }
        _ => Event::deserialize(named),
    };
    event.map_err(unreadable)
}

fn version(body: &[u8]) -> u32 {
    serde_json::from_slice(body).map_or(EVENT_VERSION, |Version { v }| v)
}

pub(super) fn write(event: &Event) -> Vec<u8> {
    let variant = variant(event);
    let (name, fields) = parts(&variant);
    let mut body = format!("{{\"v\":{EVENT_VERSION},\"event\":\"{name}\"");
    let under = match event {
        Event::Under(under, _) => json(under),
        _ => String::new(),
    };
    let under = under.trim_start_matches('{').strip_suffix('}').unwrap_or_default();
    for fields in [under, fields].into_iter().filter(|fields| !fields.is_empty()) {
        body.push(',');
        body.push_str(fields);
    }
    body.push('}');
    body.into_bytes()
}

pub(super) fn name(event: &Event) -> String {
    parts(&variant(event)).0.to_owned()
}

/// As serde writes it: `{"failed":{…}}`.
fn variant(event: &Event) -> String {
    match event {
        Event::Under(_, fact) => json(fact),
        event => json(event),
    }
}

fn parts(variant: &str) -> (&str, &str) {
    let inner = variant.strip_prefix("{\"").and_then(|rest| rest.strip_suffix("}}"));
    inner
        .and_then(|inner| inner.split_once("\":{"))
        .expect("every event is a variant with named fields")
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("events have only string keys and finite values")
}

/// A variant whose name is known, with the body that has its fields among others.
struct Named<'a, 'de> {
    name: &'a str,
    body: &'de [u8],
}

impl<'de> Deserializer<'de> for Named<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for Named<'_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = seed.deserialize(self.name.into_deserializer())?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Named<'_, 'de> {
    type Error = Error;

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut serde_json::Deserializer::from_slice(self.body))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut json = serde_json::Deserializer::from_slice(self.body);
        json.deserialize_struct("", fields, visitor)
    }

    fn unit_variant(self) -> Result<(), Error> {
        Err(Error::custom("every event has named fields"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("every event has named fields"))
    }
}
