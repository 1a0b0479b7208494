//! The server: one thread a connection, requests in a row, a journal of all of them.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::reading::{Api, Role};
use crate::refusing::refuse;
use crate::script::{Answer, Player, prompt_lines};

/// For ever, as far as a test goes.
const FOREVER: Duration = Duration::from_secs(100_000);
const NOTED_MAX: usize = 400;

pub(crate) struct Server {
    player: Mutex<Player>,
    journal: Mutex<File>,
}

/// What was asked for.
struct Asked {
    method: String,
    path: String,
    body: Vec<u8>,
}

impl Server {
    pub(crate) fn new(journal: &Path) -> io::Result<Server> {
        let journal = OpenOptions::new().create(true).append(true).open(journal)?;
        Ok(Server { player: Mutex::default(), journal: Mutex::new(journal) })
    }

    /// Answers until the agent goes away.
    pub(crate) fn serve(&self, connection: &TcpStream) {
        let mut input = BufReader::new(connection);
        while let Ok(Some(asked)) = read_request(&mut input) {
            if self.answer(connection, &asked).is_err() {
                break;
            }
        }
    }

    fn answer(&self, connection: &TcpStream, asked: &Asked) -> io::Result<()> {
        let path = asked.path.split('?').next().unwrap_or_default();
        let Some(api) = Api::at(path).filter(|_| asked.method == "POST") else {
            self.note(json!({"event": "request", "method": asked.method, "path": asked.path}));
            let tokens = asked.body.len() / 4;
            let body = match asked.method.as_str() {
                "POST" => json!({"input_tokens": tokens, "totalTokens": tokens}),
                _ => {
                    json!({"object": "list", "data": [{"id": "stub-model", "object": "model"}], "has_more": false})
                }
            };
            return whole(connection, 200, &[], &body, asked.method == "HEAD", &Answer::default());
        };
        let body: Value = serde_json::from_slice(&asked.body)?;
        let request = api.read(&body);
        let id = Uuid::now_v7().simple().to_string();
        let player = self.player.lock();
        let answer = player.unwrap_or_else(PoisonError::into_inner).answer(&request, id);
        let said = request.messages.iter().filter(|message| message.role == Role::User);
        let said: Vec<&str> = said.map(|message| message.text.as_str()).collect();
        let roles: String = request.messages.iter().map(|message| letter(message.role)).collect();
        let prompts: Vec<&str> = said.iter().flat_map(|text| prompt_lines(text)).collect();
        let last = said.last().map_or("", |text| tail(text, NOTED_MAX));
        self.note(
            json!({"event": "request", "request": answer.id, "path": asked.path, "roles": roles,
            "last_user": last, "prompts": prompts, "place": answer.place,
            "failure": answer.failure.as_ref().map(|failure| failure.word),
            "call": answer.call.as_ref().map(|call| &call.arguments)}),
        );
        let begun = Instant::now();
        let stream = path.ends_with(":streamGenerateContent") || body["stream"] == true;
        let sent = send(connection, api, &answer, &body["model"], stream);
        let outcome = match (&sent, answer.fails_with("cut")) {
            (Ok(()), _) => "answered",
            (Err(_), true) => "closed by script",
            (Err(_), false) => "closed by client",
        };
        let seconds = begun.elapsed().as_secs_f64();
        self.note(
            json!({"event": "end", "request": answer.id, "outcome": outcome, "seconds": seconds}),
        );
        sent
    }

    fn note(&self, mut line: Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        line["time"] = json!(now.as_secs_f64());
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        // A journal that cannot be written shows in the test that reads it.
        let _ = journal.write_all(format!("{line}\n").as_bytes());
    }
}

fn letter(role: Role) -> char {
    match role {
        Role::User => 'u',
        Role::Assistant => 'a',
        Role::System => 's',
        Role::Tool => 't',
    }
}

fn tail(text: &str, max: usize) -> &str {
    let from = text.char_indices().rev().nth(max).map_or(0, |(at, _)| at);
    &text[from..]
}

fn read_request(input: &mut BufReader<&TcpStream>) -> io::Result<Option<Asked>> {
    let (mut line, mut length) = (String::new(), 0);
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    loop {
        let mut header = String::new();
        input.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
        if name.eq_ignore_ascii_case("expect") {
            input.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some(Asked { method, path, body }))
}

fn send(
    connection: &TcpStream,
    api: Api,
    answer: &Answer,
    model: &Value,
    stream: bool,
) -> io::Result<()> {
    let hangs = answer.fails_with("hang");
    wait(connection, if hangs { FOREVER } else { answer.wait })?;
    if let Some(refused) = answer.failure.as_ref().and_then(|failure| refuse(api, failure)) {
        return whole(connection, refused.status, &refused.headers, &refused.body, false, answer);
    }
    let written = api.write(answer, model);
    match stream {
        true => events(connection, answer, &written.events, api == Api::Chat),
        false => whole(connection, 200, &[], &written.whole, false, answer),
    }
}

fn whole(
    mut connection: &TcpStream,
    status: u16,
    headers: &[(String, String)],
    body: &Value,
    head_only: bool,
    answer: &Answer,
) -> io::Result<()> {
    let body = body.to_string();
    let mut head = format!("HTTP/1.1 {status} Stub\r\ncontent-type: application/json\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    connection.write_all(head.as_bytes())?;
    if head_only {
        return Ok(());
    }
    let (first, second) = body.as_bytes().split_at(body.len() / 2);
    connection.write_all(first)?;
    fail_half_way(connection, answer)?;
    connection.write_all(second)
}

fn events(
    mut connection: &TcpStream,
    answer: &Answer,
    events: &[Value],
    done: bool,
) -> io::Result<()> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes())?;
    let pause = answer.spread / u32::try_from(events.len()).unwrap_or(u32::MAX).max(1);
    for (at, event) in events.iter().enumerate() {
        if at == events.len() / 2 {
            fail_half_way(connection, answer)?;
        }
        let name = event["type"].as_str().map_or(String::new(), |name| format!("event: {name}\n"));
        chunk(connection, &format!("{name}data: {event}\n\n"))?;
        wait(connection, pause)?;
    }
    if done {
        chunk(connection, "data: [DONE]\n\n")?;
    }
    connection.write_all(b"0\r\n\r\n")
}

fn chunk(mut connection: &TcpStream, text: &str) -> io::Result<()> {
    connection.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn fail_half_way(connection: &TcpStream, answer: &Answer) -> io::Result<()> {
    if answer.fails_with("stall") {
        wait(connection, FOREVER)?;
    }
    if answer.fails_with("cut") {
        connection.shutdown(Shutdown::Both)?;
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    Ok(())
}

/// Waits, but notices at once when the agent hangs up.
fn wait(connection: &TcpStream, time: Duration) -> io::Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    let ready = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&timeout))?;
    match ready > 0 && connection.peek(&mut [0])? == 0 {
        true => Err(io::ErrorKind::ConnectionAborted.into()),
        false => Ok(()),
    }
}
