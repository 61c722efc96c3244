//! Other forms of a conversation, for templates that do not take it as it is.
//!
//! Clients send several system messages, one in the middle, two messages of the user in a row, or ids of any
//! length. Many templates take one system message at the start or none, roles that alternate, or ids of nine
//! letters. Every form keeps all words.

use std::collections::{HashMap, VecDeque};

use super::Message;

/// Text between the texts of joined messages.
const BETWEEN: &str = "\n\n";

/// A form of the system messages.
type Form = fn(&[Message]) -> Vec<Message>;

/// The forms in the order of their preference, the conversation itself first. They are made one by one, and
/// may be equal. With `merges_calls`, tool calls are merged with the assistant's text before them.
pub fn forms(messages: &[Message], merges_calls: bool) -> impl Iterator<Item = Vec<Message>> {
    let forms: [(Form, bool); 5] = [
        (<[Message]>::to_vec, false),
        (system_first, false),
        (system_first, true),
        (system_as_user, true),
        (system_in_first_user, true),
    ];
    let with_ids: [Form; 2] = [<[Message]>::to_vec, with_short_ids];
    with_ids.into_iter().flat_map(move |ids| {
        let messages = ids(messages);
        forms.into_iter().map(move |(form, alternates)| match alternates {
            true => alternating(form(&messages), merges_calls),
            false => form(&messages),
        })
    })
}

/// True for a message that instructs the model: of the system, or of the developer.
pub fn is_system(message: &Message) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

/// All system messages as one, at the start. Those after the assistant's last message become a message of the
/// user: something must ask for the answer.
fn system_first(messages: &[Message]) -> Vec<Message> {
    let n_said = messages.iter().rposition(|message| !is_system(message)).map_or(0, |last| last + 1);
    let has_answered = n_said > 0 && messages[n_said - 1].role == "assistant";
    let n_said = if has_answered { n_said } else { messages.len() };
    let (said, last) = messages.split_at(n_said);
    let mut out: Vec<Message> = said.iter().filter(|message| !is_system(message)).cloned().collect();
    if let Some(text) = system_text(said) {
        out.insert(0, Message::new("system", text));
    }
    out.extend(system_text(last).map(|text| Message::new("user", text)));
    out
}

/// System messages in the user's role.
fn system_as_user(messages: &[Message]) -> Vec<Message> {
    let kept = messages.iter().filter(|message| !is_system(message) || !message.content.trim().is_empty());
    let as_user = kept.map(|message| match is_system(message) {
        true => Message { role: "user".into(), ..message.clone() },
        false => message.clone(),
    });
    as_user.collect()
}

/// The text of all system messages before that of the user's first message.
fn system_in_first_user(messages: &[Message]) -> Vec<Message> {
    let mut out: Vec<Message> = messages.iter().filter(|message| !is_system(message)).cloned().collect();
    let Some(text) = system_text(messages) else { return out };
    match out.iter_mut().find(|message| message.role == "user") {
        Some(user) => user.content = joined([text.as_str(), &user.content]),
        None => out.insert(0, Message::new("user", text)),
    }
    out
}

/// Consecutive messages of the user as one, and likewise the assistant's up to its tool calls.
fn alternating(messages: Vec<Message>, merges_calls: bool) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let merges = matches!(message.role.as_str(), "user" | "assistant");
        let merges = merges && (merges_calls || message.tool_calls.is_empty());
        let last = out.last_mut().filter(|last| merges && last.role == message.role);
        let Some(last) = last.filter(|last| last.tool_calls.is_empty()) else {
            out.push(message);
            continue;
        };
        last.content = joined([last.content.as_str(), &message.content]);
        last.tool_calls = message.tool_calls;
        last.reasoning_content = match (last.reasoning_content.take(), message.reasoning_content) {
            (Some(one), Some(other)) => Some(joined([one.as_str(), &other])),
            (one, other) => one.or(other),
        };
        last.name = last.name.take().filter(|name| Some(name) == message.name.as_ref());
    }
    out
}

/// Ids of calls as numbers of nine digits, in the order of the calls. A result without an id answers the
/// first call that has no result yet.
fn with_short_ids(messages: &[Message]) -> Vec<Message> {
    let mut out = messages.to_vec();
    let (mut short_ids, mut open, mut n_ids) = (HashMap::new(), VecDeque::new(), 0);
    let mut next = || {
        n_ids += 1;
        format!("{n_ids:09}")
    };
    for message in &mut out {
        for call in &mut message.tool_calls {
            let short = next();
            short_ids.extend(call.id.take().map(|id| (id, short.clone())));
            open.push_back(short.clone());
            call.id = Some(short);
        }
        if message.role == "tool" {
            let named = message.tool_call_id.take().map(|id| short_ids.entry(id).or_insert_with(&mut next));
            let short = named.cloned().or_else(|| open.front().cloned()).unwrap_or_else(&mut next);
            open.retain(|id| *id != short);
            message.tool_call_id = Some(short);
        }
    }
    out
}

fn system_text(messages: &[Message]) -> Option<String> {
    let texts = messages.iter().filter(|message| is_system(message)).map(|message| message.content.as_str());
    Some(joined(texts)).filter(|text| !text.is_empty())
}

fn joined<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts = texts.into_iter().filter(|text| !text.trim().is_empty());
    texts.collect::<Vec<_>>().join(BETWEEN)
}
