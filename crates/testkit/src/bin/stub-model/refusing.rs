//! Refusals in each vendor's form, as far as the agents look at it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::reading::Api;
use crate::script::Failure;

pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

/// A kind of refusal: its status, its names by Anthropic, OpenAI and Google, and its text.
type Kind = (u16, &'static str, &'static str, &'static str, String);

pub(crate) fn refuse(api: Api, failure: &Failure) -> Option<Refused> {
    let reset = failure.reset;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let (limited, at) = (failure.word == "limit", now + reset);
    let (status, anthropic, openai, google, text) = kind(failure)?;
    let mut headers = Vec::new();
    let mut head = |name: &str, value: String| headers.push((name.to_owned(), value));
    if status == 429 {
        head("retry-after", reset.to_string());
    }
    let body = match api {
        Api::Messages => {
            if limited {
                let windows = [
                    ("status", "rejected".to_owned()),
                    ("reset", at.to_string()),
                    ("representative-claim", "five_hour".to_owned()),
                    ("5h-status", "rejected".to_owned()),
                    ("5h-reset", at.to_string()),
                    ("5h-utilization", "1.0".to_owned()),
                    ("7d-status", "allowed".to_owned()),
                    ("7d-reset", (at + 86_400).to_string()),
                    ("7d-utilization", "0.4".to_owned()),
                    ("overage-status", "rejected".to_owned()),
                    ("overage-disabled-reason", "org_level_disabled".to_owned()),
                ];
                for (name, value) in windows {
                    head(&format!("anthropic-ratelimit-unified-{name}"), value);
                }
            }
            json!({"type": "error", "error": {"type": anthropic, "message": text}, "request_id": "req_stub"})
        }
        Api::Gemini => {
            let mut error = json!({"code": status, "message": text, "status": google});
            if status == 429 {
                let window = if limited { "PerDay" } else { "PerMinute" };
                let quota = format!("GenerateRequests{window}PerProjectPerModel-FreeTier");
                error["details"] = json!([
                    {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
                    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{reset}s")}]);
            }
            json!({ "error": error })
        }
        Api::Responses if limited => {
            head("x-codex-primary-used-percent", "100".to_owned());
            head("x-codex-primary-window-minutes", "300".to_owned());
            head("x-codex-primary-reset-at", at.to_string());
            json!({"error": {"type": "usage_limit_reached", "message": "The usage limit has been reached",
                "plan_type": "plus", "resets_at": at, "resets_in_seconds": reset}})
        }
        Api::Responses | Api::Chat => {
            json!({"error": {"message": text, "type": openai, "code": openai, "param": null}})
        }
    };
    let status = if (api, failure.word) == (Api::Messages, "overload") { 529 } else { status };
    Some(Refused { status, headers, body })
}

fn kind(failure: &Failure) -> Option<Kind> {
    Some(match failure.word {
        "limit" => (
            429,
            "rate_limit_error",
            "insufficient_quota",
            "RESOURCE_EXHAUSTED",
            "You exceeded your current quota.".to_owned(),
        ),
        "rate" => (
            429,
            "rate_limit_error",
            "rate_limit_exceeded",
            "RESOURCE_EXHAUSTED",
            format!("Rate limit reached. Try again in {}s.", failure.reset),
        ),
        "auth" => (
            401,
            "authentication_error",
            "invalid_api_key",
            "UNAUTHENTICATED",
            "Incorrect API key provided.".to_owned(),
        ),
        "overload" => (
            503,
            "overloaded_error",
            "server_is_overloaded",
            "UNAVAILABLE",
            "Overloaded. Please try again later.".to_owned(),
        ),
        "toolong" => (
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "INVALID_ARGUMENT",
            "prompt is too long: 2 tokens > 1 maximum".to_owned(),
        ),
        _ => return None,
    })
}
