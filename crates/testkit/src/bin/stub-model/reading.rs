//! Requests of four model APIs, as messages, tools and perhaps a schema that the answer must fit.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// OpenAI's Chat Completions.
    Chat,
    Gemini,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    Tool,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: BTreeMap<String, Value>,
    pub(crate) schema: Option<Value>,
}

impl Api {
    /// By the path of a request.
    pub(crate) fn at(path: &str) -> Option<Api> {
        let endings = [
            ("/messages", Api::Messages),
            ("/responses", Api::Responses),
            ("/chat/completions", Api::Chat),
            (":generateContent", Api::Gemini),
            (":streamGenerateContent", Api::Gemini),
        ];
        endings.into_iter().find(|(ending, _)| path.ends_with(ending)).map(|(_, api)| api)
    }

    pub(crate) fn read(self, body: &Value) -> Request {
        match self {
            Api::Messages => anthropic(body),
            Api::Responses => responses(body),
            Api::Chat => chat(body),
            Api::Gemini => gemini(body),
        }
    }
}

impl Request {
    fn say(&mut self, role: Role, text: String) {
        self.messages.push(Message { role, text });
    }

    fn offer<'a>(&mut self, tools: impl Iterator<Item = &'a Value>, schema: &[&str]) {
        for tool in tools {
            let name = tool["name"].as_str().unwrap_or_default().to_owned();
            let found = schema.iter().map(|key| &tool[*key]).find(|found| !found.is_null());
            self.tools.insert(name, found.cloned().unwrap_or_default());
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The text of a message, whole or in parts.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        parts => {
            let texts: Vec<&str> = list(parts).filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
    }
}

fn role(name: &Value) -> Role {
    match name.as_str() {
        Some("assistant" | "model") => Role::Assistant,
        Some("system" | "developer") => Role::System,
        Some("tool") => Role::Tool,
        _ => Role::User,
    }
}

fn anthropic(body: &Value) -> Request {
    let mut request = Request::default();
    for message in list(&body["messages"]) {
        let content = &message["content"];
        for result in list(content).filter(|block| block["type"] == "tool_result") {
            request.say(Role::Tool, text(&result["content"]));
        }
        let said: Value = match content {
            Value::Array(blocks) => {
                blocks.iter().filter(|block| block["type"] == "text").cloned().collect()
            }
            whole => whole.clone(),
        };
        let (who, said) = (role(&message["role"]), text(&said));
        if !said.is_empty() || who == Role::Assistant {
            request.say(who, said);
        }
    }
    request.offer(list(&body["tools"]), &["input_schema"]);
    request
}

fn responses(body: &Value) -> Request {
    let mut request = Request::default();
    if let Some(said) = body["input"].as_str() {
        request.say(Role::User, said.to_owned());
    }
    for item in list(&body["input"]) {
        match item["type"].as_str().unwrap_or("message") {
            "message" => request.say(role(&item["role"]), text(&item["content"])),
            kind if kind.ends_with("_output") => {
                request.say(Role::Tool, item["output"].to_string())
            }
            _ => request.say(Role::Assistant, String::new()),
        }
    }
    request.offer(list(&body["tools"]), &["parameters"]);
    request
}

fn chat(body: &Value) -> Request {
    let mut request = Request::default();
    for message in list(&body["messages"]) {
        request.say(role(&message["role"]), text(&message["content"]));
    }
    let functions = list(&body["tools"]).map(|tool| &tool["function"]).filter(|f| f.is_object());
    request.offer(functions, &["parameters"]);
    request.schema = body.pointer("/response_format/json_schema/schema").cloned();
    request
}

fn gemini(body: &Value) -> Request {
    let mut request = Request::default();
    let mut seen = HashSet::new();
    for content in list(&body["contents"]) {
        let results = list(&content["parts"]).map(|part| &part["functionResponse"]);
        for result in results.filter(|result| result.is_object()) {
            // A resumed session may hold the same result twice.
            if result["id"].is_null() || seen.insert(result["id"].to_string()) {
                request.say(Role::Tool, result.to_string());
            }
        }
        let (who, said) = (role(&content["role"]), text(&content["parts"]));
        if !said.is_empty() || who == Role::Assistant {
            request.say(who, said);
        }
    }
    let functions = list(&body["tools"]).flat_map(|tool| list(&tool["functionDeclarations"]));
    request.offer(functions, &["parametersJsonSchema", "parameters"]);
    let config = &body["generationConfig"];
    let schemas = ["responseJsonSchema", "responseSchema"].map(|key| config[key].clone());
    request.schema = schemas.into_iter().find(|schema| !schema.is_null());
    request
}
