//! What an error of an agent is: a limit, a cap on money, a missing sign-in, or a server that is busy. The
//! status of the failed request says it first, the words last.

use serde::{Deserialize, Serialize};

/// What keeps an agent from working.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// A usage limit: it passes at an instant.
    Limit,
    /// A cap on money, or no credit: it does not pass by itself.
    Spend,
    /// Not signed in, or not allowed.
    SignIn,
    /// The server is busy, or the connection broke: it passes soon.
    Busy,
}

const SPEND: &[&str] = &[
    "credit balance is too low",
    "out of credits",
    "out of extra usage",
    "insufficient credits",
    "insufficient_quota",
    "insufficient balance",
    "spend cap",
    "spend limit",
    "spending limit",
    "spending cap",
    "billing",
    "payment required",
    "purchase more credits to continue",
];
const SIGN_IN: &[&str] = &[
    "authenticat",
    "invalid api key",
    "incorrect api key",
    "api key not valid",
    "invalid_api_key",
    "invalid x-api-key",
    "oauth token",
    "please run /login",
    "not logged in",
    "unauthorized",
    "permission denied: account",
];
const LIMIT: &[&str] = &[
    "hit your",
    "usage limit",
    "limit reached",
    "limit will reset",
    "quota",
    "rate limit",
    "rate-limit",
    "rate_limit",
    "too many requests",
    "limit exceeded",
    "limit resets",
    "resource_exhausted",
    "resource exhausted",
    "exceeded your",
];
const BUSY: &[&str] = &[
    "overloaded",
    "high demand",
    "temporarily unavailable",
    "service unavailable",
    "internal server error",
    "bad gateway",
    "gateway timeout",
    "server error",
    "connection",
    "econnreset",
    "etimedout",
    "network error",
    "fetch failed",
    "stream disconnected",
    "terminated",
    "timed out",
    "at capacity",
];

/// What an error is, by the status of the request where it is known, and by its words.
pub fn classify(status: Option<u64>, text: &str) -> Option<Trouble> {
    // Some agents print a typographic apostrophe.
    let text = text.to_lowercase().replace('\u{2019}', "'");
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let status = status.or_else(|| status_in(&text));
    let by_status = match status {
        Some(401 | 403) => Some(Trouble::SignIn),
        Some(402) => Some(Trouble::Spend),
        Some(429) => Some(Trouble::Limit),
        Some(500 | 502 | 503 | 504 | 529) => Some(Trouble::Busy),
        _ => None,
    };
    match by_status {
        // Both are said with the status of a limit.
        Some(Trouble::Limit) | None if says(SPEND) && !text.contains("try again at") => {
            Some(Trouble::Spend)
        }
        Some(known) => Some(known),
        None if says(SIGN_IN) => Some(Trouble::SignIn),
        None if says(LIMIT) => Some(Trouble::Limit),
        None if says(BUSY) => Some(Trouble::Busy),
        None => None,
    }
}

/// A status that a text gives, such as `API Error: 529` or `"code":401`.
fn status_in(text: &str) -> Option<u64> {
    const BEFORE: [&str; 6] = ["error: ", "status ", "status: ", "code\":", "code: ", "("];
    BEFORE.iter().find_map(|before| {
        text.match_indices(before).find_map(|(at, _)| {
            let digits: String =
                text[at + before.len()..].chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok().filter(|status| digits.len() == 3 && (400..600).contains(status))
        })
    })
}
