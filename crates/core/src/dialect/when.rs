//! Until when a limit lasts, from the words that announce it. Agents cut what they say to the minute, the
//! hour or the day: the instant is the end of what was said, so that nothing goes on early.

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::time::Millis;

/// Where a reader of clock times stands.
pub struct Here<'a> {
    pub now: Millis,
    /// The zone of a time that names none.
    pub zone: TimeZone,
    /// Finds a zone by its name in the zone database.
    pub zone_named: &'a dyn Fn(&str) -> Option<TimeZone>,
}

/// A time of day, and how far what was said is from its end.
struct TimeOfDay {
    time: Time,
    cut: SignedDuration,
}

const MINUTE: SignedDuration = SignedDuration::from_secs(60);
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// An epoch in seconds below this one is some other number.
const EPOCH_MIN: i64 = 1_500_000_000;

/// The instant that a text names, if it names one.
pub fn until(text: &str, here: &Here<'_>) -> Option<Millis> {
    let words = words(text);
    let found = epoch(&words)
        .or_else(|| timestamp(text))
        .or_else(|| after(&words, here))
        .or_else(|| at(&words, text, here))?;
    Some(Millis(found.as_millisecond()))
}

/// Lower-case words, without the marks around them.
fn words(text: &str) -> Vec<String> {
    let is_between = |c: char| c.is_whitespace() || matches!(c, '|' | '(' | ')' | ',' | '·' | '∙');
    let trimmed = |word: &str| {
        word.trim_matches(|c: char| !c.is_alphanumeric() && c != '+').to_ascii_lowercase()
    };
    text.split(is_between).map(trimmed).filter(|word| !word.is_empty()).collect()
}

/// Seconds or milliseconds since 1970.
fn epoch(words: &[String]) -> Option<Timestamp> {
    words.iter().find_map(|word| match word.parse::<i64>().ok()? {
        seconds if (EPOCH_MIN..EPOCH_MIN * 4).contains(&seconds) => {
            Timestamp::from_second(seconds).ok()
        }
        ms if (EPOCH_MIN * 1000..EPOCH_MIN * 4000).contains(&ms) => {
            Timestamp::from_millisecond(ms).ok()
        }
        _ => None,
    })
}

/// An RFC 3339 time.
fn timestamp(text: &str) -> Option<Timestamp> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-:+.".contains(c);
    let candidates = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches('.'));
    candidates.filter(|word| word.contains('T')).find_map(|word| word.parse().ok())
}

/// `in 3 days 4 hours 12 minutes`, `retry after 30s`.
fn after(words: &[String], here: &Here<'_>) -> Option<Timestamp> {
    let starts = words.iter().enumerate().filter(|(_, word)| *word == "in" || *word == "after");
    let wait = starts.into_iter().find_map(|(at, _)| span(&words[at + 1..]))?;
    Timestamp::from_millisecond(here.now.0).ok()?.checked_add(wait).ok()
}

/// A span of time, and one more of its smallest unit: what is said is cut, not rounded up.
fn span(words: &[String]) -> Option<SignedDuration> {
    let words = words.iter().filter(|word| *word != "and" && *word != "about");
    let mut parts = words.flat_map(|word| runs(word));
    let mut total: Option<SignedDuration> = None;
    let mut smallest = DAY;
    while let Some(number) = parts.next() {
        let number: f64 = match number {
            "a" | "an" | "one" => 1.0,
            digits => match digits.parse() {
                Ok(number) => number,
                Err(_) => break,
            },
        };
        smallest = unit_of(parts.next()?)?;
        let part = SignedDuration::try_from_secs_f64(number * smallest.as_secs_f64()).ok()?;
        total = Some(total.unwrap_or_default() + part);
    }
    total.map(|total| total + smallest)
}

/// `2h30m` is one word, `2 hours` are two: runs of digits and of anything else.
fn runs(word: &str) -> Vec<&str> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let mut runs = Vec::new();
    let mut left = word;
    while let Some(first) = left.chars().next() {
        let end = left.find(|c| is_digit(c) != is_digit(first)).unwrap_or(left.len());
        let (run, rest) = left.split_at(end);
        runs.push(run);
        left = rest;
    }
    runs
}

fn unit_of(word: &str) -> Option<SignedDuration> {
    Some(match word {
        "ms" => SignedDuration::from_millis(1),
        "s" | "sec" | "secs" | "second" | "seconds" => SignedDuration::from_secs(1),
        "m" | "min" | "mins" | "minute" | "minutes" => MINUTE,
        "h" | "hr" | "hrs" | "hour" | "hours" => SignedDuration::from_hours(1),
        "d" | "day" | "days" => DAY,
        "week" | "weeks" => DAY * 7,
        _ => return None,
    })
}

/// A day, a time of day or both, behind a word that announces them.
fn at(words: &[String], text: &str, here: &Here<'_>) -> Option<Timestamp> {
    let announces = |word: &String| {
        matches!(word.as_str(), "at" | "reset" | "resets" | "until" | "after" | "renews" | "on")
    };
    let start = words.iter().position(announces)?;
    let words = &words[start..];
    let zone = zone(text, words, here).unwrap_or_else(|| here.zone.clone());
    let now = Timestamp::from_millisecond(here.now.0).ok()?.to_zoned(zone.clone()).datetime();
    let clock = words.iter().enumerate().find_map(|(at, word)| clock(word, words.get(at + 1)));
    let is_timed = clock.is_some();
    let (time, cut) = match clock {
        Some(TimeOfDay { time, cut }) => (time, cut),
        // A day without a time of day: its end.
        None => (Time::midnight(), DAY),
    };
    let end = |date: Date| date.to_datetime(time).checked_add(cut).ok();
    let is_ahead = |end: &DateTime| *end > now;
    let found = match day(words, now) {
        Some(Day::On(date)) => end(date),
        Some(Day::Yearly(month, day)) => {
            let years = [now.year(), now.year() + 1];
            let dates = years.into_iter().filter_map(|year| Date::new(year, month, day).ok());
            dates.filter_map(end).find(is_ahead)
        }
        Some(Day::Weekly(weekday)) => {
            let dates = (0..=7).filter_map(|days| now.date().checked_add(DAY * days).ok());
            dates.filter(|date| date.weekday() == weekday).filter_map(end).find(is_ahead)
        }
        None if is_timed => {
            let dates = (0..=1).filter_map(|days| now.date().checked_add(DAY * days).ok());
            dates.filter_map(end).find(is_ahead)
        }
        None => None,
    }?;
    Some(zone.to_ambiguous_zoned(found).later().ok()?.timestamp())
}

/// `9:51 am`, `3am`, `15:00`, `midnight`.
fn clock(word: &str, next: Option<&String>) -> Option<TimeOfDay> {
    let cut = MINUTE;
    match word {
        "midnight" => return Some(TimeOfDay { time: Time::midnight(), cut }),
        "noon" => return Some(TimeOfDay { time: Time::constant(12, 0, 0, 0), cut }),
        _ => {}
    }
    let (digits, half) = match word.strip_suffix("am").or_else(|| word.strip_suffix("pm")) {
        Some(digits) => (digits, &word[digits.len()..]),
        None => (word, next.map_or("", String::as_str)),
    };
    let half =
        Some(half.trim_matches('.')).filter(|half| matches!(*half, "am" | "pm" | "a.m" | "p.m"));
    let mut parts = digits.split(':');
    let hour: i8 = parts.next()?.parse().ok()?;
    let minute = parts.next().map(str::parse::<i8>);
    let second = parts.next().map(str::parse::<i8>);
    let hour = match (half, hour) {
        (Some(half), 12) => {
            if half.starts_with('a') {
                0
            } else {
                12
            }
        }
        (Some(half), hour) if half.starts_with('p') => hour + 12,
        (None, _) if minute.is_none() => return None,
        (_, hour) => hour,
    };
    let cut = if second.is_some() { SignedDuration::from_secs(1) } else { cut };
    let time = Time::new(hour, minute.unwrap_or(Ok(0)).ok()?, second.unwrap_or(Ok(0)).ok()?, 0);
    Some(TimeOfDay { time: time.ok()?, cut })
}

enum Day {
    On(Date),
    /// A month and a day of some year.
    Yearly(i8, i8),
    Weekly(Weekday),
}

/// `tomorrow`, `Nov 20`, `20 November 2026`, `2026-11-20`, `Monday`.
fn day(words: &[String], now: DateTime) -> Option<Day> {
    words.iter().enumerate().find_map(|(at, word)| {
        if word == "tomorrow" {
            return now.date().tomorrow().ok().map(Day::On);
        }
        if let Ok(date) = word.parse::<Date>() {
            return Some(Day::On(date));
        }
        if let Some(month) = month(word) {
            let number = |at: usize| number(words.get(at)?);
            let day = number(at + 1).or_else(|| number(at.checked_sub(1)?))?;
            let year = [at + 1, at + 2].iter().find_map(|at| {
                words.get(*at)?.parse::<i16>().ok().filter(|year| (2000..3000).contains(year))
            });
            let date = year.and_then(|year| Date::new(year, month, day).ok());
            return Some(date.map_or(Day::Yearly(month, day), Day::On));
        }
        weekday(word).map(Day::Weekly)
    })
}

/// A day of the month.
fn number(word: &str) -> Option<i8> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_ordinal = matches!(&word[digits.len()..], "" | "st" | "nd" | "rd" | "th");
    digits.parse().ok().filter(|day| is_ordinal && (1..=31).contains(day))
}

fn month(word: &str) -> Option<i8> {
    const NAMES: [&str; 12] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    let month = NAMES.iter().position(|name| word.len() >= 3 && name.starts_with(word))?;
    i8::try_from(month + 1).ok()
}

fn weekday(word: &str) -> Option<Weekday> {
    const NAMES: [(&str, Weekday); 7] = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];
    let known = NAMES.iter().find(|(name, _)| word.len() >= 3 && name.starts_with(word))?;
    Some(known.1)
}

/// `(Europe/Berlin)`, `UTC`, `PST`, `Pacific time`, `GMT+2`.
fn zone(text: &str, words: &[String], here: &Here<'_>) -> Option<TimeZone> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
    let named = text.split(|c: char| !is_part(c)).filter(|word| word.contains('/'));
    if let Some(zone) = named.filter(|word| !word.starts_with('/')).find_map(here.zone_named) {
        return Some(zone);
    }
    words.iter().find_map(|word| {
        let offset = word.strip_prefix("utc").or_else(|| word.strip_prefix("gmt"));
        if let Some(hours) = offset {
            let hours = if hours.is_empty() { 0 } else { hours.parse().ok()? };
            return Some(TimeZone::fixed(jiff::tz::Offset::from_hours(hours).ok()?));
        }
        let rule = match word.as_str() {
            "pst" | "pdt" | "pt" | "pacific" => "PST8PDT,M3.2.0,M11.1.0",
            "mst" | "mdt" => "MST7MDT,M3.2.0,M11.1.0",
            "cst" | "cdt" => "CST6CDT,M3.2.0,M11.1.0",
            "est" | "edt" | "et" | "eastern" => "EST5EDT,M3.2.0,M11.1.0",
            "cet" | "cest" => "CET-1CEST,M3.5.0,M10.5.0/3",
            "bst" => "GMT0BST,M3.5.0/1,M10.5.0",
            _ => return None,
        };
        TimeZone::posix(rule).ok()
    })
}
