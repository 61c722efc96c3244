//! Detects what a template supports by rendering a conversation.

use serde_json::json;

use super::{ChatError, ChatTemplate, Extras, Message, ToolCall};

/// Parts of a conversation that a template includes in the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// System messages.
    pub system: bool,
    /// Tools that the model may call.
    pub tools: bool,
    /// Tool calls of the assistant.
    pub calls: bool,
    /// Several tool calls in one message.
    pub parallel_calls: bool,
}

impl Abilities {
    /// Abilities of `template`. Content that it refuses or omits is not supported.
    pub fn of(template: &ChatTemplate) -> Self {
        let shows = |messages: &[Message], extras: &Extras, words: &[&str]| {
            let text = template.render_as_is(messages, extras, false);
            text.is_ok_and(|text| words.iter().all(|word| text.contains(word)))
        };
        let (user, with_tool) = (Message::new("user", "a question"), with_tool());
        let shows_calls =
            |n: usize| shows(&talk_with_calls(n), &with_tool, &CALLED.map(|(name, _)| name)[..n]);
        let system = Message::new("system", "shown system");
        Self {
            system: shows(&[system, user.clone()], &Extras::default(), &["shown system"]),
            tools: shows(std::slice::from_ref(&user), &with_tool, &["shown_tool"]),
            calls: shows_calls(1),
            parallel_calls: shows_calls(2),
        }
    }
}

impl ChatTemplate {
    /// True if the template raises an exception for tools, or for a conversation with a call and its result.
    pub fn refuses_tools(&self) -> bool {
        let refused = |messages: &[Message]| self.render_with(messages, &with_tool(), true);
        let talk = talk_with_calls(1);
        [&talk[..1], &talk].into_iter().any(|talk| matches!(refused(talk), Err(ChatError::Refused { .. })))
    }
}

/// Names and ids of the calls in [`talk_with_calls`]. Every template accepts ids of nine letters.
const CALLED: [(&str, &str); 2] = [("shown_first", "callfirst"), ("shown_other", "callother")];

pub(super) fn with_tool() -> Extras {
    let tool = json!({ "type": "function", "function": { "name": "shown_tool", "description": "does it",
        "parameters": { "type": "object", "properties": { "x": { "type": "string" } } } } });
    Extras { tools: vec![tool], ..Extras::default() }
}

/// A question, `n` calls, and their results.
fn talk_with_calls(n: usize) -> Vec<Message> {
    let call = |(name, id): &(&str, &str)| {
        let (id, name) = (Some((*id).to_owned()), (*name).to_owned());
        ToolCall { id, name, arguments: r#"{"x": "a"}"#.to_owned() }
    };
    let calls: Vec<ToolCall> = CALLED[..n].iter().map(call).collect();
    let answers = calls.iter().map(|call| {
        let (tool_call_id, name) = (call.id.clone(), Some(call.name.clone()));
        Message { tool_call_id, name, ..Message::new("tool", "an answer") }
    });
    let answers: Vec<Message> = answers.collect();
    let asked = Message { tool_calls: calls, ..Message::new("assistant", "") };
    [vec![Message::new("user", "a question"), asked], answers].concat()
}

#[cfg(test)]
mod tests {
    use super::super::built_in;
    use super::*;

    fn abilities(source: &str) -> [bool; 4] {
        let template = ChatTemplate::with_tokens(source, String::new(), String::new()).unwrap();
        let Abilities { system, tools, calls, parallel_calls } = Abilities::of(&template);
        [system, tools, calls, parallel_calls]
    }

    #[test]
    fn what_is_shown_is_found_out() {
        assert_eq!(abilities(built_in("chatml").unwrap()), [true, false, false, false]);
        assert_eq!(abilities("{{ messages[-1].content }}"), [false; 4]);
        assert_eq!(abilities("{{ raise_exception('no') }}"), [false; 4]);
        let tools = "{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}";
        let turns = "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or \
                     [] %}{{ call.function.name }}{% endfor %}{% endfor %}";
        assert_eq!(abilities(tools), [false, true, false, false]);
        assert_eq!(abilities(&format!("{tools}{turns}")), [true; 4]);
        let one = "{% for message in messages %}{% if message.tool_calls and message.tool_calls | length > 1 \
                   %}{{ raise_exception('one call') }}{% endif %}{% endfor %}";
        assert_eq!(abilities(&format!("{one}{tools}{turns}")), [true, true, true, false]);
    }
}
