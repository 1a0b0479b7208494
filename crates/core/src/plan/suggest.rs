//! "Did you mean …?": the nearest of the names that would have been right.

/// No key or name is longer than this; a longer text is no slip of the finger.
const LENGTH_MAX: usize = 128;

/// The candidate that differs from `text` by a slip or two, ignoring case.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.is_empty() || text.len() > LENGTH_MAX {
        return None;
    }
    let text = text.to_lowercase();
    let mut slips_max = (text.len() / 3).clamp(1, 3).min(text.len() - 1);
    let mut best = None;
    for candidate in candidates {
        if let Some(slips) = slips(text.as_bytes(), candidate.as_bytes(), slips_max) {
            best = Some(candidate);
            match slips {
                0 => break,
                // Only a nearer one may replace it.
                _ => slips_max = slips - 1,
            }
        }
    }
    best
}

/// How many bytes were left out, added, changed or swapped with their neighbour, up to `max`.
fn slips(a: &[u8], b: &[u8], max: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > max {
        return None;
    }
    let (a, b) = without_shared_ends(a, b);
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = above[j] + usize::from(a[i] != b[j]);
            let mut least = changed.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        if row.iter().all(|slips| *slips > max) {
            return None;
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().filter(|slips| *slips <= max)
}

/// What two names share at their ends costs nothing, and most of them share most.
fn without_shared_ends<'a>(mut a: &'a [u8], mut b: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    while let ([x, a_rest @ ..], [y, b_rest @ ..]) = (a, b)
        && x == y
    {
        (a, b) = (a_rest, b_rest);
    }
    while let ([a_rest @ .., x], [b_rest @ .., y]) = (a, b)
        && x == y
    {
        (a, b) = (a_rest, b_rest);
    }
    (a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_recognised() {
        let keys = ["id", "title", "group", "needs", "run", "prompt", "verify", "timeout"];
        for (typed, meant) in [
            ("vrify", Some("verify")),
            ("Verify", Some("verify")),
            ("veriffy", Some("verify")),
            ("evrify", Some("verify")),
            ("tilte", Some("title")),
            ("need", Some("needs")),
            ("timeuot", Some("timeout")),
            ("ID", Some("id")),
            ("x", None),
            ("", None),
            ("deploy", None),
        ] {
            assert_eq!(nearest(typed, keys), meant, "{typed}");
        }
        assert_eq!(nearest(&"verify".repeat(100), keys), None);
    }

    #[test]
    fn the_nearest_wins() {
        assert_eq!(nearest("routes", ["route", "routes2", "ROUTES", "routes"]), Some("routes"));
        assert_eq!(nearest("roates", ["goats", "routes", "rotate"]), Some("routes"));
    }
}
