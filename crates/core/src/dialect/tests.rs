//! Every dialect over the recorded streams of its agent, and over what may go wrong in any stream.

use super::*;

macro_rules! samples {
    ($($name:literal,)*) => {
        [$(($name, include_bytes!(concat!("samples/", $name)).as_slice())),*]
    };
}

/// What real agents printed.
const SAMPLES: &[(&str, &[u8])] = &samples![
    "claude-auth.jsonl",
    "claude-background.jsonl",
    "claude-cut.jsonl",
    "claude-limit-subscription.jsonl",
    "claude-limit.jsonl",
    "claude-ok.jsonl",
    "claude-overload.jsonl",
    "claude-rate-then-fine.jsonl",
    "claude-resume-unknown.jsonl",
    "claude-resume-unknown.stderr",
    "claude-resume.jsonl",
    "claude-sigint-stream.jsonl",
    "claude-sigterm-tool.jsonl",
    "codex-auth.jsonl",
    "codex-cut.jsonl",
    "codex-limit.jsonl",
    "codex-ok.jsonl",
    "codex-rate-then-fine.jsonl",
    "codex-resume-unknown.stderr",
    "codex-resume.jsonl",
    "codex-sigint-stream.jsonl",
    "codex-sigterm-tool.jsonl",
    "gemini-auth.jsonl",
    "gemini-auth.stderr",
    "gemini-cut.jsonl",
    "gemini-limit.jsonl",
    "gemini-limit.stderr",
    "gemini-ok.jsonl",
    "gemini-rate-then-fine.jsonl",
    "gemini-resume-unknown.stderr",
    "gemini-resume.jsonl",
    "gemini-sigint-stream.jsonl",
    "gemini-sigterm-tool.jsonl",
    "opencode-auth.jsonl",
    "opencode-cut.jsonl",
    "opencode-limit.jsonl",
    "opencode-ok.jsonl",
    "opencode-rate-then-fine.jsonl",
    "opencode-resume-unknown.stderr",
    "opencode-resume.jsonl",
    "opencode-sigint-stream.jsonl",
    "opencode-sigterm-tool.jsonl",
    "qwen-auth.jsonl",
    "qwen-cut.jsonl",
    "qwen-limit.jsonl",
    "qwen-ok.jsonl",
    "qwen-rate-then-fine.jsonl",
    "qwen-resume-unknown.stderr",
    "qwen-resume.jsonl",
    "qwen-sigint-stream.jsonl",
    "qwen-sigterm-tool.jsonl",
];

fn dialect_of(name: &str) -> Dialect {
    match name.split('-').next() {
        Some("codex") => Dialect::Codex,
        Some("gemini") => Dialect::Gemini,
        Some("opencode") => Dialect::Opencode,
        _ => Dialect::Claude,
    }
}

fn read(dialect: Dialect, bytes: &[u8]) -> Said {
    let mut reader = Reader::new(dialect, None);
    reader.push(bytes);
    reader.end();
    reader.said
}

/// In a line: the beginning of the session, how it ended, what it cost.
fn shown(said: &Said) -> String {
    let session = said.session.as_ref().map_or("-", |id| &id[..8.min(id.len())]);
    let turn = match &said.turn {
        None => "no end".to_owned(),
        Some(Turn::Done) => "done".to_owned(),
        Some(Turn::Failed { trouble: None, .. }) => "failed".to_owned(),
        Some(Turn::Failed { trouble: Some(trouble), .. }) => format!("{trouble:?}"),
    };
    let resets = said.resets_at.map(|at| format!(" until {}", crate::time::timestamp(at)));
    let lost = if said.has_no_conversation { " no conversation" } else { "" };
    let Spent { cost, input_tokens, output_tokens } = said.spent;
    let dollars = cost.map(|cost| format!(" ${}.{:04}", cost / 1_000_000, cost / 100 % 10_000));
    let dollars = dollars.unwrap_or_default();
    format!(
        "{session} {turn}{}{lost} {input_tokens}+{output_tokens}{dollars}",
        resets.unwrap_or_default()
    )
}

#[test]
fn real_transcripts_are_read() {
    let lines = SAMPLES
        .iter()
        .map(|(name, bytes)| format!("{name:33} {}", shown(&read(dialect_of(name), bytes))));
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @"
        claude-auth.jsonl                 8dc1bcd0 SignIn 100+20 $0.0008
        claude-background.jsonl           94961271 done 300+60 $0.0024
        claude-cut.jsonl                  3da49b52 done 200+40 $0.0016
        claude-limit-subscription.jsonl   c3be50cb Limit until 2026-11-16T10:00:08.000Z 100+20 $0.0004
        claude-limit.jsonl                6c0328d6 Limit 100+20 $0.0008
        claude-ok.jsonl                   b52d107d done 200+40 $0.0016
        claude-overload.jsonl             5da5bd7f Busy 100+20 $0.0008
        claude-rate-then-fine.jsonl       0120a76e done 200+40 $0.0016
        claude-resume-unknown.jsonl       - failed no conversation 0+0 $0.0000
        claude-resume-unknown.stderr      - no end no conversation 0+0
        claude-resume.jsonl               b52d107d done 100+20 $0.0024
        claude-sigint-stream.jsonl        14210ca6 failed 0+0 $0.0000
        claude-sigterm-tool.jsonl         af9afafe no end 0+0
        codex-auth.jsonl                  01a1e38e SignIn 0+0
        codex-cut.jsonl                   01a1e38e done 200+40
        codex-limit.jsonl                 01a1e38d Limit 0+0
        codex-ok.jsonl                    01a1e38d done 200+40
        codex-rate-then-fine.jsonl        01a1e38d done 200+40
        codex-resume-unknown.stderr       - no end no conversation 0+0
        codex-resume.jsonl                01a1e38d done 300+60
        codex-sigint-stream.jsonl         01a1e38d no end 0+0
        codex-sigterm-tool.jsonl          01a1e38d no end 0+0
        gemini-auth.jsonl                 575319d6 SignIn 100+20
        gemini-auth.stderr                - no end 0+0
        gemini-cut.jsonl                  1116145c Busy 100+20
        gemini-limit.jsonl                4f6c6c1c Limit 100+20
        gemini-limit.stderr               - no end 0+0
        gemini-ok.jsonl                   f57f1f6a done 200+40
        gemini-rate-then-fine.jsonl       85a053ed done 200+40
        gemini-resume-unknown.stderr      - no end no conversation 0+0
        gemini-resume.jsonl               f57f1f6a done 100+20
        gemini-sigint-stream.jsonl        be7eb581 no end 0+0
        gemini-sigterm-tool.jsonl         44e4e222 no end 0+0
        opencode-auth.jsonl               ses_e1c7 SignIn 100+20 $0.0000
        opencode-cut.jsonl                ses_e1c7 done 200+40 $0.0000
        opencode-limit.jsonl              ses_e1c7 no end 100+20 $0.0000
        opencode-ok.jsonl                 ses_e1c7 done 200+40 $0.0000
        opencode-rate-then-fine.jsonl     ses_e1c7 done 200+40 $0.0000
        opencode-resume-unknown.stderr    - no end no conversation 0+0
        opencode-resume.jsonl             ses_e1c7 done 100+20 $0.0000
        opencode-sigint-stream.jsonl      ses_e1c7 no end 0+0
        opencode-sigterm-tool.jsonl       ses_e1c7 no end 0+0
        qwen-auth.jsonl                   dab2ff9c SignIn 100+20
        qwen-cut.jsonl                    6163bc32 done 200+40
        qwen-limit.jsonl                  a9ff12e1 no end 0+0
        qwen-ok.jsonl                     c0f5587a done 200+40
        qwen-rate-then-fine.jsonl         4f7472bd done 200+40
        qwen-resume-unknown.stderr        - no end no conversation 0+0
        qwen-resume.jsonl                 c0f5587a done 400+80
        qwen-sigint-stream.jsonl          d9d7f061 no end 0+0
        qwen-sigterm-tool.jsonl           51c8072c no end 0+0
        ");
}

/// However the pipe cuts an output, it says the same.
#[test]
fn pieces_say_what_the_whole_says() {
    for (name, bytes) in SAMPLES {
        let mut reader = Reader::new(dialect_of(name), None);
        bytes.chunks(7).for_each(|piece| reader.push(piece));
        reader.end();
        assert_eq!(reader.said, read(dialect_of(name), bytes), "{name}");
    }
}

/// A line that is torn at any byte is as good as none.
#[test]
fn a_torn_last_line_says_nothing() {
    let (_, ok) = SAMPLES.iter().find(|(name, _)| *name == "codex-ok.jsonl").expect("there");
    let last = ok.trim_ascii_end().iter().rposition(|byte| *byte == b'\n').expect("lines") + 1;
    let whole = read(Dialect::Codex, &ok[..last]);
    for end in last..ok.trim_ascii_end().len() {
        assert_eq!(read(Dialect::Codex, &ok[..end]), whole, "{end}");
    }
    assert_ne!(read(Dialect::Codex, ok), whole);
}

#[test]
fn a_long_line_is_passed_over_and_costs_no_memory() {
    let mut reader = Reader::new(Dialect::Codex, None);
    reader.push(br#"{"type":"turn.completed","x":""#);
    let mut kept = 0;
    for _ in 0..100 {
        reader.push(&[b'x'; 1 << 20]);
        kept = kept.max(reader.line.capacity());
    }
    reader.push(b"\"}\n");
    assert_eq!(reader.said, Said::default());
    assert!(kept <= 2 * LINE_BYTES_MAX, "{kept}");
    reader.push(b"{\"type\":\"turn.completed\"}\n");
    assert_eq!(reader.said.turn, Some(Turn::Done));
}

#[test]
fn an_id_is_a_word_and_no_option() {
    for id in ["b52d107d-fac6-4def", "ses_e1c7", "T-5:a.b"] {
        assert!(is_session(id), "{id}");
    }
    for id in ["", "-p", "--resume", "a b", "a\nb", "$(x)", "a/../b", &"x".repeat(201)] {
        assert!(!is_session(id), "{id}");
    }
    let evil = br#"{"type":"thread.started","thread_id":"--dangerous"}"#;
    assert_eq!(read(Dialect::Codex, evil).session, None);
}

#[test]
fn a_plain_output_ends_with_what_went_wrong() {
    let trouble = |text: &str| match read(Dialect::Plain, text.as_bytes()).turn {
        Some(Turn::Failed { trouble, .. }) => trouble,
        _ => None,
    };
    assert_eq!(trouble("working\nYou've hit your usage limit.\n"), Some(Trouble::Limit));
    assert_eq!(trouble("all done\n"), None);
    let early = format!("usage limit reached\n{}", "fine\n".repeat(PLAIN_LINES_MAX));
    assert_eq!(trouble(&early), None, "what is long past is not why it ended");
}

/// 2026-11-16 09:00 UTC, a Monday, in Berlin.
fn here() -> Here<'static> {
    let zone = |rule: &str| jiff::tz::TimeZone::posix(rule).expect("a rule");
    Here {
        now: Millis(1_794_819_600_000),
        zone: zone("CET-1CEST,M3.5.0,M10.5.0/3"),
        zone_named: &|name| match name {
            "America/New_York" => jiff::tz::TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").ok(),
            "Asia/Kolkata" => jiff::tz::TimeZone::posix("IST-5:30").ok(),
            _ => None,
        },
    }
}

/// Wordings with their class and, in UTC, the instant from which on an agent may go on.
const CORPUS: &[(&str, &str)] = &include!("wordings.in");

#[test]
fn limits_are_known_by_their_words() {
    assert!(CORPUS.len() >= 60, "{}", CORPUS.len());
    let mut wrong = Vec::new();
    for (text, expected) in CORPUS {
        let class = classify(None, text).map_or("-".to_owned(), |trouble| format!("{trouble:?}"));
        let at = match until(text, &here()) {
            Some(at) => crate::time::timestamp(at).replace(".000Z", "Z"),
            None => "-".to_owned(),
        };
        let found = format!("{class} {at}");
        if found != *expected {
            wrong.push(format!("{text}\n  expected {expected}\n  found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
