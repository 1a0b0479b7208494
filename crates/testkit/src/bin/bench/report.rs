//! A row of the table: what was measured, the floor beside it, the bar, the verdict. Knows nothing of how
//! anything is measured.

use std::fmt::Write as _;
use std::io;

/// Milliseconds from start to end of a program that does nothing, on the quiet machine that bars in
/// milliseconds are meant for.
const QUIET_START: f64 = 1.2;

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    what: String,
    floor: String,
    ours: String,
    ratio: Option<f64>,
    bar: Option<Bar>,
    again: bool,
}

/// What a figure is held to.
#[derive(Debug, Clone, Copy)]
struct Bar {
    figure: f64,
    limit: f64,
    sense: Sense,
    unit: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sense {
    AtMost,
    AtLeast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// There is no bar.
    Told,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, ours: impl Into<String>) -> Row {
        Row {
            what: what.into(),
            floor: String::new(),
            ours: ours.into(),
            ratio: None,
            bar: None,
            again: false,
        }
    }

    /// What was measured beside it, and how many times that ours is.
    pub(crate) fn beside(mut self, floor: impl Into<String>, ratio: f64) -> Row {
        self.floor = floor.into();
        self.ratio = Some(ratio);
        self
    }

    /// Held to a ratio: not more than this many times the floor.
    pub(crate) fn times_at_most(self, limit: f64) -> Row {
        let figure = self.ratio.expect("a ratio needs a floor");
        self.held(figure, Sense::AtMost, limit, "×")
    }

    /// Held to a ratio: not less than this many times the floor.
    pub(crate) fn times_at_least(self, limit: f64) -> Row {
        let figure = self.ratio.expect("a ratio needs a floor");
        self.held(figure, Sense::AtLeast, limit, "×")
    }

    /// Held to milliseconds of a quiet machine: as many more as starting a process takes longer here
    /// and now.
    pub(crate) fn ms_at_most(self, figure: f64, limit: f64, start: f64) -> Row {
        let slower = (start / QUIET_START).max(1.0);
        self.at_most(figure, (limit * slower).round(), "ms")
    }

    /// Held to an absolute figure.
    pub(crate) fn at_most(self, figure: f64, limit: f64, unit: &'static str) -> Row {
        self.held(figure, Sense::AtMost, limit, unit)
    }

    fn held(mut self, figure: f64, sense: Sense, limit: f64, unit: &'static str) -> Row {
        self.bar = Some(Bar { figure, limit, sense, unit });
        self
    }

    pub(crate) fn measured_again(mut self) -> Row {
        self.again = true;
        self
    }

    pub(crate) fn verdict(&self) -> Verdict {
        match &self.bar {
            None => Verdict::Told,
            Some(bar) if bar.is_met() => Verdict::Met,
            Some(_) => Verdict::Missed,
        }
    }

    fn cells(&self) -> [String; 6] {
        let bar = self.bar.map_or_else(String::new, |bar| bar.to_string());
        let ratio = self.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} ×"));
        let verdict = match self.verdict() {
            Verdict::Met if self.again => "met (again)",
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Told => "–",
        };
        [self.what.clone(), self.floor.clone(), self.ours.clone(), ratio, bar, verdict.to_owned()]
    }
}

impl Bar {
    fn is_met(&self) -> bool {
        match self.sense {
            Sense::AtMost => self.figure <= self.limit,
            Sense::AtLeast => self.figure >= self.limit,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = match self.sense {
            Sense::AtMost => '≤',
            Sense::AtLeast => '≥',
        };
        write!(f, "{sign} {} {}", self.limit, self.unit)
    }
}

/// Every row, as a table that is readable as text and as Markdown.
pub(crate) fn table(rows: &[Row]) -> io::Result<String> {
    let head = ["operation", "floor", "ours", "ratio", "bar", "verdict"].map(str::to_owned);
    let cells: Vec<[String; 6]> =
        std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for (number, row) in cells.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            write!(text, "| {cell:width$} ").map_err(io::Error::other)?;
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                write!(text, "|{}", "-".repeat(width + 2)).map_err(io::Error::other)?;
            }
            text.push_str("|\n");
        }
    }
    Ok(text)
}

/// How many bars are met.
pub(crate) fn closing(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict() == verdict).count();
    format!("{} bars met, {} missed", count(Verdict::Met), count(Verdict::Missed))
}
