//! Answers in the form of each API: the whole document, and the same as events of a stream.

use serde_json::{Value, json};

use crate::reading::Api;
use crate::script::Answer;

/// An answer, whole and in events.
pub(crate) struct Written {
    pub(crate) whole: Value,
    pub(crate) events: Vec<Value>,
}

impl Api {
    pub(crate) fn write(self, answer: &Answer, model: &Value) -> Written {
        match self {
            Api::Messages => anthropic(answer, model),
            Api::Responses => responses(answer, model),
            Api::Chat => chat(answer, model),
            Api::Gemini => gemini(answer),
        }
    }
}

fn with(value: &Value, key: &str, new: Value) -> Value {
    let mut value = value.clone();
    value[key] = new;
    value
}

fn anthropic(answer: &Answer, model: &Value) -> Written {
    let usage = json!({"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0});
    let mut content = Vec::new();
    if !answer.text.is_empty() {
        content.push(json!({"type": "text", "text": answer.text}));
    }
    if let Some(call) = &answer.call {
        let id = format!("toolu_{}", answer.id);
        content.push(
            json!({"type": "tool_use", "id": id, "name": call.tool, "input": call.arguments}),
        );
    }
    let stop = if answer.call.is_some() { "tool_use" } else { "end_turn" };
    let whole = json!({"id": format!("msg_{}", answer.id), "type": "message", "role": "assistant",
        "model": model, "content": content, "usage": usage, "stop_reason": stop, "stop_sequence": null});
    let begun = with(&with(&whole, "content", json!([])), "stop_reason", Value::Null);
    let mut events = vec![json!({"type": "message_start", "message": begun})];
    for (index, block) in content.iter().enumerate() {
        let (empty, deltas): (Value, Vec<Value>) = match block["type"] == "text" {
            true => (
                with(block, "text", json!("")),
                answer
                    .pieces()
                    .iter()
                    .map(|text| json!({"type": "text_delta", "text": text}))
                    .collect(),
            ),
            false => (
                with(block, "input", json!({})),
                vec![
                    json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
                ],
            ),
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": empty}));
        let delta = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
        events.extend(deltas.into_iter().map(delta));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    let end = json!({"stop_reason": stop, "stop_sequence": null});
    events.push(json!({"type": "message_delta", "delta": end, "usage": usage}));
    events.push(json!({"type": "message_stop"}));
    Written { whole, events }
}

fn responses(answer: &Answer, model: &Value) -> Written {
    let (mut output, mut events) = (Vec::new(), Vec::new());
    if !answer.text.is_empty() {
        let id = format!("msg_{}", answer.id);
        let message = json!({"type": "message", "id": id, "role": "assistant", "status": "in_progress",
            "content": []});
        events.push(
            json!({"type": "response.output_item.added", "output_index": 0, "item": message}),
        );
        events.extend(answer.pieces().iter().map(|piece| {
            json!({"type": "response.output_text.delta", "item_id": id, "output_index": 0,
                "content_index": 0, "delta": piece})
        }));
        let text = json!([{"type": "output_text", "text": answer.text, "annotations": []}]);
        output.push(with(&with(&message, "status", json!("completed")), "content", text));
    }
    if let Some(call) = &answer.call {
        output.push(json!({"type": "function_call", "id": format!("fc_{}", answer.id),
            "call_id": format!("call_{}", answer.id), "name": call.tool,
            "arguments": call.arguments.to_string(), "status": "completed"}));
    }
    let usage = json!({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 120});
    let whole = json!({"id": format!("resp_{}", answer.id), "object": "response", "status": "completed",
        "model": model, "output": output, "usage": usage});
    let begun = with(&with(&whole, "status", json!("in_progress")), "output", json!([]));
    let begun = with(&begun, "usage", Value::Null);
    events.insert(0, json!({"type": "response.created", "response": begun}));
    for (index, item) in output.iter().enumerate() {
        events.push(
            json!({"type": "response.output_item.done", "output_index": index, "item": item}),
        );
    }
    events.push(json!({"type": "response.completed", "response": whole}));
    Written { whole, events }
}

fn chat(answer: &Answer, model: &Value) -> Written {
    let calls = answer.call.as_ref().map(|call| {
        json!([{"index": 0, "id": format!("call_{}", answer.id), "type": "function",
            "function": {"name": call.tool, "arguments": call.arguments.to_string()}}])
    });
    let finish = if calls.is_some() { "tool_calls" } else { "stop" };
    let text = Some(&answer.text).filter(|text| !text.is_empty());
    let mut message = json!({"role": "assistant", "content": text});
    let mut deltas = vec![json!({"role": "assistant", "content": ""})];
    deltas.extend(answer.pieces().iter().map(|piece| json!({"content": piece})));
    if let Some(calls) = calls {
        message["tool_calls"] = calls.clone();
        deltas.push(json!({"tool_calls": calls}));
    }
    let whole = json!({"id": format!("chatcmpl-{}", answer.id), "object": "chat.completion", "created": 1,
        "model": model, "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}});
    let chunk = with(&whole, "object", json!("chat.completion.chunk"));
    let choice = |delta: Value, finish: Option<&str>| json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    let quiet = with(&chunk, "usage", Value::Null);
    let events = deltas.into_iter().map(|delta| with(&quiet, "choices", choice(delta, None)));
    let last = with(&chunk, "choices", choice(json!({}), Some(finish)));
    Written { whole, events: events.chain([last]).collect() }
}

fn gemini(answer: &Answer) -> Written {
    let document = |parts: Value, finish: Option<&str>| {
        let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
        if let Some(finish) = finish {
            candidate["finishReason"] = json!(finish);
        }
        json!({"candidates": [candidate], "modelVersion": "stub-model", "responseId": answer.id,
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}})
    };
    let call = answer.call.as_ref();
    let call =
        call.map(|call| json!({"functionCall": {"name": call.tool, "args": call.arguments}}));
    let text = json!({"text": answer.text});
    let whole = document([Some(text), call.clone()].into_iter().flatten().collect(), Some("STOP"));
    let pieces = answer.pieces();
    let events = pieces.iter().map(|piece| document(json!([{"text": piece}]), None));
    let last = document(json!([call.unwrap_or_else(|| json!({"text": ""}))]), Some("STOP"));
    Written { whole, events: events.chain([last]).collect() }
}
