//! Messages in each format, cut at every position.

use proptest::prelude::*;

use super::*;
use sterna_tokenizer::chat::{ChatTemplate, Extras, Message, ToolCall};

/// A message as the client assembles it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    content: String,
    reasoning: String,
    /// Name, arguments, and whether the call is complete.
    calls: Vec<(String, String, bool)>,
    ids: Vec<String>,
}

impl Said {
    fn take(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content += &text,
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::CallBegun { index, id, name } => {
                    assert_eq!(index, self.calls.len(), "calls count from 0");
                    self.calls.push((name, String::new(), false));
                    self.ids.push(id);
                }
                Delta::Arguments { index, text } => {
                    assert_eq!(index + 1, self.calls.len(), "arguments belong to the last call");
                    assert!(!self.calls[index].2 && !text.is_empty());
                    self.calls[index].1 += &text;
                }
                Delta::CallEnded { index } => self.calls[index].2 = true,
            }
        }
    }
}

fn weather() -> Tool {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    });
    Tool { name: "weather".into(), description: None, parameters, shown: None, strict: true }
}

fn options(format: Format) -> ParserOptions {
    ParserOptions {
        format: Some(format),
        tools: vec![weather()],
        thoughts: Some(Thoughts::Marked(&THINK)),
        ..ParserOptions::default()
    }
}

fn read<'p>(options: &ParserOptions, pieces: impl IntoIterator<Item = &'p str>) -> Said {
    let (mut parser, mut said) = (Parser::new(options.clone()), Said::default());
    pieces.into_iter().for_each(|piece| said.take(parser.push(piece)));
    said.take(parser.finish());
    said
}

/// Parses `text` whole, by character, and cut in two at every character; the result must be the same.
fn read_any(options: &ParserOptions, text: &str) -> Said {
    let whole = read(options, [text]);
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    for &at in &starts {
        assert_eq!(read(options, [&text[..at], &text[at..]]), whole, "{text:?} cut at {at}");
    }
    assert_eq!(
        read(options, starts.windows(2).map(|at| &text[at[0]..at[1]])),
        whole,
        "{text:?} in characters"
    );
    whole
}

fn call(name: &str, arguments: &str) -> (String, String, bool) {
    (name.to_owned(), arguments.to_owned(), true)
}

#[test]
fn hermes() {
    let options = options(Format::Hermes);
    let text = "Let me look. <b>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \
                \"B\\\"}é\", \"days\": [1, {}]}}\n</tool_call>\n\
                <tool_call>{\"arguments\": {}, \"name\": \"b\"}</tool_call>";
    let said = read_any(&options, text);
    assert_eq!(said.content, "Let me look. <b>\n");
    let first = call("weather", "{\"city\": \"B\\\"}é\", \"days\": [1, {}]}");
    assert_eq!(said.calls, [first, call("b", "{}")]);
    let plain = "1 < 2 <tool_cal> <tool_call>no JSON</tool_call> <tool";
    assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
}

#[test]
fn a_call_that_is_cut_off_does_not_end() {
    let cut = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ber";
    let said = read_any(&options(Format::Hermes), cut);
    assert_eq!(said.calls, [("weather".to_owned(), "{\"city\": \"Ber".to_owned(), false)]);
    let unnamed = "<tool_call>{\"name\": \"wea";
    assert_eq!(read_any(&options(Format::Hermes), unnamed).content, unnamed);
}

#[test]
fn llama3() {
    let options = options(Format::Llama3);
    let object = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}";
    for text in [object.to_owned(), format!("\n {object}"), format!("<|python_tag|>{object}\n")] {
        let said = read_any(&options, &text);
        assert_eq!(
            (said.content.as_str(), &said.calls[..]),
            ("", &[call("weather", "{\"city\": \"Bern\"}")][..])
        );
    }
    for text in ["{\"a\": 1} is JSON", " plain", "{", "<|python_tag|>print(1)"] {
        assert_eq!(read_any(&options, text), Said { content: text.into(), ..Said::default() });
    }
}

#[test]
fn mistral() {
    let options = options(Format::Mistral);
    let text = "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"]\"}, \
                \"id\": \"abc123xyz\"}, {\"id\": \"000000001\", \"name\": \"b\"}]";
    let said = read_any(&options, text);
    assert_eq!(said.calls, [call("weather", "{\"city\": \"]\"}"), call("b", "{}")]);
    assert_eq!(said.ids[1], "000000001");
    let is_id = |id: &String| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    // An id after the arguments comes too late.
    assert!(said.ids.iter().all(is_id) && said.ids[0] != "abc123xyz", "{:?}", said.ids);
    assert_eq!(read_any(&options, "a [TOOL_CALLS] b").content, "a [TOOL_CALLS] b");
}

#[test]
fn qwen3_coder() {
    let options = options(Format::Qwen3Coder);
    let text = "Look:\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\n\"York\"\n</parameter>\n\
                <parameter=days>\n3\n</parameter>\n<parameter=else>\nx < y\n</parameter>\n</function>\n\
                </tool_call>\n<function=b>\n</function>";
    let said = read_any(&options, text);
    assert_eq!(said.content, "Look:\n");
    let first = "{\"city\": \"New\\n\\\"York\\\"\", \"days\": 3, \"else\": \"x < y\"}";
    assert_eq!(said.calls, [call("weather", first), call("b", "{}")]);
    let plain = "<tool_call> <funct <function=\nb>";
    assert_eq!(read_any(&options, plain).content, plain);
}

#[test]
fn calls_in_other_tags() {
    let first = "{\"city\": \"New\\n\\\"York\\\"\\n\", \"days\": 3, \"else\": \"x < y\"}";
    let calls = [call("weather", first), call("b", "{}")];
    for (format, text, plain) in [
        (
            Format::SeedOss,
            "Look:\n<seed:tool_call>\n<function=weather>\n<parameter=city>New\n\"York\"\n</parameter>\n\
             <parameter=days>3</parameter>\n<parameter=else>x < y</parameter>\n</function>\n\
             </seed:tool_call>\n<seed:tool_call><function=b></function></seed:tool_call>",
            "<seed:tool_call> <funct <function=\nb>",
        ),
        (
            Format::Glm,
            "Look:\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>New\n\"York\"\n</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>none</arg_key>\n\
             <arg_key>else</arg_key><arg_value>x < y</arg_value>\n</tool_call>\n<tool_call>b</tool_call>",
            "<tool_call>not a name</tool_call> <tool_call>",
        ),
        (
            Format::MiniMax,
            "Look:\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">New\n\"York\"\n\
             </parameter>\n<parameter name=\"days\">3</parameter>\n<parameter name=\"else\">x < y\
             </parameter>\n</invoke>\n<invoke name=\"b\">\n</invoke>\n</minimax:tool_call>",
            "<minimax:tool_call> <invoke name=\"\nb\">",
        ),
    ] {
        let said = read_any(&options(format), text);
        assert_eq!((said.content.as_str(), &said.calls[..]), ("Look:\n", &calls[..]), "{format:?}");
        assert_eq!(read_any(&options(format), plain).content, plain, "{format:?}");
    }
}

#[test]
fn mistral_args() {
    let options = options(Format::MistralArgs);
    let text = "Look. [TOOL_CALLS]weather[ARGS]{\"city\": \"[TOOL_CALLS]\", \"days\": {\"a\": 1}}\
                [TOOL_CALLS]b[CALL_ID]abc123xyz[ARGS]{}";
    let said = read_any(&options, text);
    assert_eq!(said.content, "Look. ");
    let first = call("weather", "{\"city\": \"[TOOL_CALLS]\", \"days\": {\"a\": 1}}");
    assert_eq!(said.calls, [first, call("b", "{}")]);
    assert_eq!((said.ids[0].len(), said.ids[1].as_str()), (9, "abc123xyz"));
    // The older form is supported, too.
    let list = "[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {\"a\": 1}}]";
    assert_eq!(read_any(&options, list).calls, [call("b", "{\"a\": 1}")]);
    let cut = read_any(&options, "[TOOL_CALLS]b[ARGS]{\"a\": \"x");
    assert_eq!(cut.calls, [("b".to_owned(), "{\"a\": \"x".to_owned(), false)]);
    for plain in ["a [TOOL_CALLS] b", "[TOOL_CALLS]weather[AR", "[TOOL_CALLS]no name[ARGS]{}"] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
}

#[test]
fn harmony() {
    let options = options(Format::Harmony);
    let thought = "<|channel|>analysis<|message|>Rain <or> sun?\n<|end|><|start|>assistant";
    for head in [
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        " to=functions.weather<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=weather<|message|>",
    ] {
        for end in ["", "<|call|>"] {
            let said = read_any(&options, &format!("{thought}{head}{{\"city\": \"<|end|>\"}}{end}"));
            assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("Rain <or> sun?", ""), "{head}");
            assert_eq!(said.calls, [call("weather", "{\"city\": \"<|end|>\"}")], "{head}");
        }
    }
    // Commentary before a call, reasoning after it, and tools that are not offered.
    let text = format!(
        "{thought}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis \
         to=python code<|message|>1 + 1<|call|><|start|>assistant<|channel|>final<|message|> It rains.\n"
    );
    let said = read_any(&options, &text);
    assert_eq!(said.reasoning, "Rain <or> sun?\n\n1 + 1");
    assert_eq!((said.content.as_str(), said.calls.len()), ("I look. It rains.\n", 0));
    let cut = read_any(&options, "<|channel|>commentary to=functions.weather json<|message|>{\"city\": \"Be");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Be".to_owned(), false)]);
    // A truncated header is dropped; text without one is the answer.
    assert_eq!(read_any(&options, "<|channel|>analysis<|message|>a<|end|><|start|>assist").content, "");
    for plain in ["It rains.", "{\"a\": 1}", " t", " to the <b>", "", "<"] {
        assert_eq!(read_any(&options, plain).content, plain);
    }
    // Reasoning that is not split off is shown with its marks.
    let off = ParserOptions { thoughts: None, ..options };
    let text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b";
    assert_eq!(read_any(&off, text).content, text);
}

#[test]
fn deepseek() {
    let one = |name: &str, arguments: &str| {
        format!(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        )
    };
    let plain = |name: &str, arguments: &str| {
        format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
    };
    let city = "{\"city\": \"``` <｜tool▁call▁end｜>\"}";
    for format in [Format::DeepSeek, Format::DeepSeek31] {
        let options = options(format);
        for calls in [
            format!("{}\n{}", one("weather", city), one("b", "{}")),
            plain("weather", city) + &plain("b", "{}"),
        ] {
            let text = format!("<think>So.</think>\n\nYes.<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>");
            let said = read_any(&options, &text);
            assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("So.", "Yes."));
            assert_eq!(said.calls, [call("weather", city), call("b", "{}")], "{text}");
            // R1 sometimes omits the mark of the list.
            assert_eq!(read_any(&options, &calls).calls, said.calls);
        }
        let cut = read_any(&options, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{\"a\": [");
        assert_eq!(cut.calls, [("b".to_owned(), "{\"a\": [".to_owned(), false)]);
        for plain in ["<｜tool▁calls▁begin｜> none", "<｜tool▁call▁begin｜>b<｜tool▁s", "<｜tool"]
        {
            assert_eq!(read_any(&options, plain).content, plain);
        }
    }
}

#[test]
fn pythonic() {
    let options = options(Format::Pythonic);
    let text = " [weather(city=\"B\\\"e)\\nü\", days=3, all = [True, None, {'a': (1, -2.5,), \
                'b': False}]),\n time.now(), b(c='it\\'s \"x\"\\x41\\q')]";
    let said = read_any(&options, text);
    let first =
        "{\"city\": \"B\\\"e)\\nü\", \"days\": 3, \"all\": [true, null, {\"a\": [1, -2.5], \"b\": false}]}";
    let last = "{\"c\": \"it's \\\"x\\\"A\\\\q\"}";
    assert_eq!(said.calls, [call("weather", first), call("time.now", "{}"), call("b", last)]);
    assert_eq!(said.content, "");
    for (_, arguments, _) in &said.calls {
        assert!(serde_json::from_str::<Value>(arguments).is_ok(), "{arguments}");
    }
    let cut = read_any(&options, "[weather(city=\"Ber");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Ber".to_owned(), false)]);
    for plain in ["[1, 2]", "[weather]", "[a b(c=1)]", "[weath", "Call [weather(city=\"a\")]"] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
    // A string is passed on as it arrives.
    let mut parser = Parser::new(options);
    let begun = parser.push("[weather(city=\"Be");
    assert_eq!(begun[1..], [Delta::Arguments { index: 0, text: "{\"city\": \"Be".into() }]);
    assert_eq!(parser.push("rn"), [Delta::Arguments { index: 0, text: "rn".into() }]);
}

/// Whitespace in Unicode but not in Python is part of a word.
#[test]
fn blanks_of_unicode_in_python() {
    let said = read_any(&options(Format::Pythonic), "[f(a=\u{a0}, b=1\u{2003})]");
    assert_eq!(said.calls, [call("f", "{\"a\": \"\", \"b\": 1}")]);
}

#[test]
fn lfm2() {
    let options = options(Format::Lfm2);
    let text = "Look. <|tool_call_start|>[weather(city=\"B]e\", days=3), b()]<|tool_call_end|>So.";
    let said = read_any(&options, text);
    assert_eq!(said.calls, [call("weather", "{\"city\": \"B]e\", \"days\": 3}"), call("b", "{}")]);
    assert_eq!(said.content, "Look. So.");
    let cut = read_any(&options, "<|tool_call_start|>[weather(city=\"Ber");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Ber".to_owned(), false)]);
    for plain in ["<|tool_call_start|> none", "<|tool_call_start|>[weath", "<|tool_call_st", "[weather()]"] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
}

/// Lists of calls between marks, as each model writes them.
#[test]
fn calls_in_lists() {
    let arguments = "{\"city\": \"B]e\", \"days\": 3}";
    let named = format!(
        "[{{\"name\": \"weather\", \"arguments\": {arguments}}}, {{\"name\": \"b\", \"arguments\": {{}}}}]"
    );
    let cohere = format!(
        "[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {arguments}}},\n    \
         {{\"tool_call_id\": \"1\", \"tool_name\": \"b\", \"parameters\": {{}}}}\n]"
    );
    let keyed = format!("[{{\"weather\": {arguments}}}, {{\"b\": {{}}}}]");
    for (format, open, list, close) in [
        (Format::Granite3, "<|tool_call|>", &named, ""),
        (Format::Phi4Mini, "<|tool_call|>", &named, "<|/tool_call|>"),
        (Format::Nemotron2, "<TOOLCALL>", &named, "</TOOLCALL>"),
        (Format::Hunyuan, "<tool_calls>", &named, "</tool_calls>"),
        (Format::Cohere2, "<|START_ACTION|>", &cohere, "<|END_ACTION|>"),
        (Format::CommandR, "Action: ```json\n", &cohere, "\n```"),
        (Format::Apertus, "<|tools_prefix|>", &keyed, "<|tools_suffix|>"),
    ] {
        let options = options(format);
        let said = read_any(&options, &format!("Look. {open}{list}{close}\n"));
        assert_eq!(said.calls, [call("weather", arguments), call("b", "{}")], "{format:?}");
        assert_eq!(said.content, "Look. ", "{format:?}");
        // The ids of a message count from 0 in Cohere's form, so they are not unique in a conversation.
        assert!(said.ids.iter().all(|id| id.starts_with("call_")), "{format:?}: {:?}", said.ids);
        let cut = read_any(&options, &format!("{open}{}", &list[..list.find("B]").unwrap() + 2]));
        assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"B]".to_owned(), false)], "{format:?}");
        let plain = format!("{open}none");
        assert_eq!(read_any(&options, &plain).content, plain, "{format:?}");
    }
}

#[test]
fn olmo3() {
    let options = options(Format::Olmo3);
    let text = "Look.\n<function_calls>\nweather(city=\"B)e\", days=3)\nb()\n</function_calls>";
    let said = read_any(&options, text);
    assert_eq!(said.calls, [call("weather", "{\"city\": \"B)e\", \"days\": 3}"), call("b", "{}")]);
    assert_eq!(said.content, "Look.\n");
    for plain in ["<function_calls>\n</function_calls>", "<function_calls> none", "<function_ca"] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
}

/// Any other text may contain the name of a tool.
#[test]
fn glm4() {
    let options = options(Format::Glm4);
    for blank in ["\n", " \n"] {
        let said = read_any(&options, &format!("weather{blank}{{\"city\": \"Bern\", \"days\": 3}}"));
        assert_eq!(said.calls, [call("weather", "{\"city\": \"Bern\", \"days\": 3}")]);
        assert_eq!(said.content, "");
    }
    let cut = read_any(&options, "weather\n{\"city\": \"Be");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Be".to_owned(), false)]);
    for plain in ["\nIt rains.", "weather\nis {fine}", "weather {}", "weat", "other\n{}", "weather\n"] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
}

/// GLM-4's template shows a message per call, with the name as metadata, and results as observations;
/// Phi-4-mini's shows tools as a text of the system message, and calls only as text.
#[test]
fn messages_of_templates_with_keys_of_their_own() {
    let calling = Message {
        tool_calls: vec![ToolCall {
            name: "weather".into(),
            arguments: "{\"city\": \"Bern\"}".into(),
            ..ToolCall::default()
        }],
        ..Message::new("assistant", "I look.")
    };
    let talk = [Message::new("user", "Hi"), calling, Message::new("tool", "rain")];
    let shown = Format::Glm4.messages(&talk, &[]);
    let roles: Vec<&str> = shown.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "assistant", "observation"]);
    assert_eq!((shown[1].content.as_str(), shown[1].more.len()), ("I look.", 0));
    assert_eq!(shown[2].content, "{\"city\":\"Bern\"}");
    assert_eq!(shown[2].more, [("metadata", "weather".to_owned())]);

    let shown = Format::Phi4Mini.messages(&talk, &[weather()]);
    assert_eq!((shown[0].role.as_str(), shown[0].content.as_str()), ("system", ""));
    let (key, tools) = &shown[0].more[0];
    let tools: Value = serde_json::from_str(tools).unwrap();
    assert_eq!((*key, &tools[0]["name"]), ("tools", &json!("weather")));
    let call = "I look.<|tool_call|>[{\"name\":\"weather\",\"arguments\":{\"city\":\"Bern\"}}]<|/tool_call|>";
    assert_eq!(shown[2].content, call);
}

/// Templates in the style of the published ones, with these messages.
#[test]
fn templates_show_keys_of_their_own() {
    let call = ToolCall { name: "weather".into(), arguments: "{\"a\": 1}".into(), ..ToolCall::default() };
    let calling = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
    let talk = [Message::new("user", "Hi"), calling, Message::new("tool", "rain")];
    let render = |source: &str, messages: &[Message]| {
        let template = ChatTemplate::with_tokens(source, "<s>".into(), "</s>".into()).unwrap();
        template.render_with(messages, &Extras::default(), false).unwrap()
    };
    let glm4 =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.get('metadata', '') }}\n{{ m.content }}{% endfor %}";
    let shown = render(glm4, &Format::Glm4.messages(&talk, &[]));
    assert_eq!(shown, "<|user|>\nHi<|assistant|>weather\n{\"a\":1}<|observation|>\nrain");

    let phi4 = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if 'tools' in m %}<|tool|>\
                {{ m.tools }}<|/tool|>{% endif %}<|end|>{% endfor %}";
    let shown = render(phi4, &Format::Phi4Mini.messages(&talk, &[weather()]));
    assert!(shown.starts_with("<|system|><|tool|>[{\"name\":\"weather\",\"parameters\":"), "{shown}");
    let end = "}]<|/tool|><|end|><|user|>Hi<|end|><|assistant|><|tool_call|>[{\"name\":\"weather\",\
               \"arguments\":{\"a\":1}}]<|/tool_call|><|end|><|tool|>rain<|end|>";
    assert!(shown.ends_with(end), "{shown}");
}

/// Templates of LFM2 show only the text of a message.
#[test]
fn calls_in_the_history_are_text_for_lfm2() {
    let arguments = json!({"city": "B\"e", "days": 3, "all": [true, null, {"a": false}]});
    let call = ToolCall { name: "weather".into(), arguments: arguments.to_string(), ..ToolCall::default() };
    let message = Message { tool_calls: vec![call], ..Message::new("assistant", "Look.") };
    let shown = Format::Lfm2.messages(&[message], &[]);
    let want = "Look.<|tool_call_start|>[weather(city=\"B\\\"e\", days=3, all=[True, None, {\"a\": False}])]\
                <|tool_call_end|>";
    assert_eq!((shown[0].content.as_str(), shown[0].tool_calls.len()), (want, 0));
}

#[test]
fn tool_code() {
    let options = options(Format::ToolCode);
    let first = "{\"city\": \"```\", \"days\": 3}";
    for (text, said) in [
        ("Look.\n```tool_code\nweather(city=\"```\", days=3)\nb()\n```", ""),
        ("Look.\n```tool_code\nprint(default_api.weather(city='```', days=3))\nprint(b())\n```\n", ""),
        ("Look.\n```tool_code\n[weather(city='```', days=3), b()]\n```\nSo.", "So."),
        (
            "Look.\n```tool_code\n[{\"name\": \"weather\", \"parameters\": {\"city\": \"```\", \
             \"days\": 3}}, {\"name\": \"b\"}]```",
            "",
        ),
    ] {
        let read = read_any(&options, text);
        assert_eq!(read.calls, [call("weather", first), call("b", "{}")], "{text}");
        assert_eq!(read.content, format!("Look.\n{said}"), "{text}");
    }
    let cut = read_any(&options, "```tool_code\nprint(weather(city=\"Ber");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Ber".to_owned(), false)]);
    // A tool may have the name of an optional wrapper.
    let print = Tool { name: "print".into(), ..weather() };
    let printing = ParserOptions { tools: vec![print], ..options.clone() };
    let said = read_any(&printing, "```tool_code\nprint(city='a')\n```");
    assert_eq!(said.calls, [call("print", "{\"city\": \"a\"}")]);
    for plain in [
        "```python\nprint(1)\n```",
        "```tool_code",
        "```tool_code\n",
        "```tool_code\n```",
        "```tool_code\nx = 3\n```\n",
        "```tool_code\nprint(1)\n```",
        "weather(city=\"a\")",
    ] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
}

#[test]
fn gemma4() {
    let options = options(Format::Gemma4);
    let text = "Look. <|tool_call>call:weather{city:<|\"|>New \"York\", }\n<|\"|>,days:3,\
                all:[<|\"|>a<|\"|>,true,{b:<|\"|><|\"|>}]}<tool_call|><|tool_call>call:b{}<tool_call|>";
    let said = read_any(&options, text);
    let first = "{\"city\": \"New \\\"York\\\", }\\n\", \"days\": 3, \"all\": [\"a\", true, {\"b\": \"\"}]}";
    assert_eq!(
        (said.content.as_str(), &said.calls[..]),
        ("Look. ", &[call("weather", first), call("b", "{}")][..])
    );
    let cut = read_any(&options, "<|tool_call>call:weather{city:<|\"|>Ber<|\"");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Ber".to_owned(), false)]);
    for plain in ["<|tool_call>weather{}", "<|tool_call>call:a b{}", "<|tool_call>ca"] {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
}

#[test]
fn function_gemma() {
    let options = options(Format::FunctionGemma);
    let text = "Look. <start_function_call>call:weather{city:<escape>New \"York\", }\n<escape>,days:3,\
                all:[<escape>a<escape>,true,{b c:<escape><escape>,d:-2.5}],when:2026-01-02T03:04,\
                json:\"x\\n\",none:None}<end_function_call><start_function_call>call:b{}\
                <end_function_call>";
    let said = read_any(&options, text);
    let first = "{\"city\": \"New \\\"York\\\", }\\n\", \"days\": 3, \"all\": [\"a\", true, {\"b c\": \"\", \
                 \"d\": -2.5}], \"when\": \"2026-01-02T03:04\", \"json\": \"x\\n\", \"none\": null}";
    assert_eq!(
        (said.content.as_str(), &said.calls[..]),
        ("Look. ", &[call("weather", first), call("b", "{}")][..])
    );
    let cut = read_any(&options, "<start_function_call>call:weather{city:<escape>Ber<esc");
    assert_eq!(cut.calls, [("weather".to_owned(), "{\"city\": \"Ber".to_owned(), false)]);
    for plain in
        ["<start_function_call>weather{}", "<start_function_call>call:a b{}", "<start_function_call>ca"]
    {
        assert_eq!(read_any(&options, plain), Said { content: plain.into(), ..Said::default() });
    }
    // A string is passed on as it arrives.
    let mut parser = Parser::new(options);
    let begun = parser.push("<start_function_call>call:weather{city:<escape>Be");
    assert_eq!(begun[1..], [Delta::Arguments { index: 0, text: "{\"city\": \"Be".into() }]);
    assert_eq!(parser.push("rn<"), [Delta::Arguments { index: 0, text: "rn".into() }]);
}

#[test]
fn kimi_k2() {
    let options = options(Format::KimiK2);
    let city = "{\"city\": \"<|tool_call_end|>\"}";
    let one = |id: &str, arguments: &str| {
        format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>")
    };
    let calls = one("functions.weather:0", city) + &one(" functions.b:12 ", " {}");
    let section = format!("Yes.<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>");
    for text in [&section, &format!("Yes.{calls}")] {
        let said = read_any(&options, text);
        assert_eq!(
            (said.content.as_str(), &said.calls[..]),
            ("Yes.", &[call("weather", city), call("b", "{}")][..])
        );
        // The template refers to a call only by its id.
        assert_eq!(said.ids, ["functions.weather:0", "functions.b:12"]);
    }
    let cut = "<|tool_call_begin|>functions.b:0<|tool_call_argument_begin|>{\"a\": [";
    assert_eq!(read_any(&options, cut).calls, [("b".to_owned(), "{\"a\": [".to_owned(), false)]);
    for plain in
        ["<|tool_calls_section_begin|> none", "<|tool_call_begin|>functions.b:0<|tool_call_arg", "<|tool"]
    {
        assert_eq!(read_any(&options, plain).content, plain);
    }
}

#[test]
fn generic() {
    let options = options(Format::Generic);
    let calls =
        "{\"tool_calls\": [{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}}, {\"name\": \"b\"}]}\n";
    let said = read_any(&options, calls);
    assert_eq!(said.calls, [call("weather", "{\"city\": \"a\"}"), call("b", "{}")]);
    let said = read_any(&options, " {\"response\": \"a\\n\\\"b\\\" \\u00e9\\ud83d\\ude00 →\"}");
    assert_eq!(said.content, "a\n\"b\" é😀 →");
    for plain in ["{\"responses\": 1}", "text", " {\"tool_c"] {
        assert_eq!(read_any(&options, plain).content, plain);
    }
}

#[test]
fn reasoning_is_split_off() {
    let hermes = options(Format::Hermes);
    let text = "<think>\nWhy <b>?\n\nSo.\n</think>\n\nYes.<tool_call>{\"name\": \"b\"}</tool_call>";
    let said = read_any(&hermes, text);
    assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("Why <b>?\n\nSo.", "Yes."));
    assert_eq!(said.calls.len(), 1);
    let opened = ParserOptions { thinks: true, ..hermes.clone() };
    let said = read_any(&opened, "So.\n</think>\n\n<tool_call>{\"name\": \"b\"}</tool_call>");
    assert_eq!((said.reasoning.as_str(), said.content.as_str(), said.calls.len()), ("So.", "", 1));
    assert_eq!(read_any(&opened, "So </thin").reasoning, "So </thin");
    let later = "a <think> b </think>";
    assert_eq!(read_any(&hermes, later).content, later);
    let off = ParserOptions { thoughts: None, ..hermes };
    assert_eq!(read_any(&off, "<think>a</think>").content, "<think>a</think>");
}

#[test]
fn without_tools_text_is_text() {
    let options = ParserOptions::default();
    for text in [" a <tool_call>{}", "{\"name\": \"x\"}", "\n\n", ""] {
        assert_eq!(read_any(&options, text).content, text);
    }
}

#[test]
fn only_what_may_begin_a_mark_is_held_back() {
    let mut parser = Parser::new(options(Format::Hermes));
    assert_eq!(parser.push("Hello <"), [Delta::Content("Hello ".into())]);
    assert_eq!(parser.push("tool"), []);
    assert_eq!(parser.push("s> <"), [Delta::Content("<tools> ".into())]);
    let begun = parser.push("tool_call>{\"name\": \"b\", \"arguments\": {\"a\"");
    assert!(matches!(&begun[0], Delta::CallBegun { index: 0, name, .. } if name == "b"), "{begun:?}");
    assert_eq!(begun[1..], [Delta::Arguments { index: 0, text: "{\"a\"".into() }]);
    assert_eq!(parser.push(": 1"), [Delta::Arguments { index: 0, text: ": 1".into() }]);
}

#[test]
fn formats_by_template_and_by_name() {
    let cases = [
        ("{% if x %}<tool_call>\n{{ call | tojson }}\n</tool_call>", Format::Hermes),
        ("<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>", Format::Qwen3Coder),
        (
            "{% set begin = '<seed:tool_call>' %}\n<function={{ name }}>\n<parameter={{ key }}>",
            Format::SeedOss,
        ),
        ("<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>", Format::Glm),
        ("{% set begin = '<minimax:tool_call>' %}<invoke name=\"{{ name }}\">", Format::MiniMax),
        ("<|tool_calls_section_begin|>{{ id }}<|tool_call_argument_begin|>", Format::KimiK2),
        ("{{ '<start_function_call>call:' + name + '{' }}{{ '<escape>' + text }}", Format::FunctionGemma),
        ("{{ '<|tool_call>call:' + name + '{' }}{{ '<|\"|>' + text }}", Format::Gemma4),
        ("{{ '```tool_code\\n' }}{{ name + '(' }}", Format::ToolCode),
        ("{{ 'List of tools: <|tool_list_start|>[' }}", Format::Lfm2),
        ("{{ 'List of tools: [' }}", Format::Lfm2),
        // MiniCPM3 has the same marks around code.
        ("<|tool_call_start|>\n```python\n{{ name }}(", Format::Generic),
        (
            "{\"name\": function name, \"parameters\": dictionary of argument name and its value}",
            Format::Llama3,
        ),
        ("{{ '<|START_ACTION|>[' }}{\"tool_call_id\": \"0\", \"tool_name\": ", Format::Cohere2),
        ("{{ 'Action: ```json\\n[' }}{{ '\"tool_name\": ' }}", Format::CommandR),
        ("{{ '<|tools_prefix|>[' }}", Format::Apertus),
        ("<functions>{{ tools }}</functions>{{ '<function_calls>' }}", Format::Olmo3),
        ("{{ '<TOOLCALL>[' }}", Format::Nemotron2),
        ("{{ '<tool_calls>[' }}<think><answer>", Format::Hunyuan),
        ("'<|tool|>' + message['tools'] + '<|/tool|>'", Format::Phi4Mini),
        ("{{ '<|tool_call|>' }}{{ calls | tojson }}", Format::Granite3),
        ("[gMASK]{% if tools %}{{ tools }}{% endif %}<|observation|>{{ message.metadata }}", Format::Glm4),
        // Nemotron 3.
        ("<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>{{ '<think>' }}", Format::Qwen3Coder),
        ("{{ '[TOOL_CALLS][' }}", Format::Mistral),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", Format::MistralArgs),
        ("<|channel|>commentary <|constrain|>json<|message|>{{ x }}<|call|>", Format::Harmony),
        ("{% if tools %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}\n```json", Format::DeepSeek),
        ("{% if tools %}<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", Format::DeepSeek31),
        // DeepSeek's own template shows calls but not tools, which need their own text.
        ("<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", Format::Generic),
        ("<|python_start|> Use exact format: [func_name1(param1=value1)]", Format::Pythonic),
        ("{{ '<|python_tag|>' }}", Format::Llama3),
        ("{{ messages }}", Format::Generic),
    ];
    for (source, format) in cases {
        assert_eq!(Format::of_template(source), format);
        assert_eq!(Format::by_name(format.name()), Some(format));
    }
    assert_eq!(Format::by_name("xml"), None);
}

#[test]
fn models_whose_templates_show_calls_and_no_tools() {
    let r1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}\n```json";
    let v31 = "<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>";
    assert_eq!(Format::of_model(r1, |_| true), Format::DeepSeek);
    assert_eq!(Format::of_model(v31, |_| true), Format::DeepSeek31);
    assert_eq!(Format::of_model(r1, |token| token != "<｜tool▁sep｜>"), Format::Generic);
    assert_eq!(Format::of_model("{{ messages }}", |_| true), Format::Generic);
    assert!(!Format::DeepSeek.shows_tools(r1) && Format::DeepSeek.shows_tools("{% if tools %}"));
    let shown = Format::DeepSeek.messages(&[Message::new("user", "Hi")], &[weather()]);
    assert_eq!((shown.len(), shown[0].role.as_str()), (2, "system"));
    assert!(shown[0].content.contains("\"weather\""), "{}", shown[0].content);
}

#[test]
fn a_given_answer_continues_after_reasoning() {
    let opens = |source: &str, prompt: &str| Syntax::of_model(source, |_| false).opens_answer(prompt);
    let harmony = "<|channel|>{{ x }}<|message|>{{ y }}<|call|>";
    assert_eq!(opens(harmony, "<|start|>assistant"), "<|channel|>final<|message|>");
    for rest in [" and rain.", "{\"a\": 1}", "n"] {
        assert_eq!(read_any(&options(Format::Harmony), rest).content, rest);
    }
    // Reasoning that the template has opened is ended as in templates with thinking disabled.
    assert_eq!(opens("<think>", "<|im_start|>assistant\n<think>\n"), "\n</think>\n\n");
    assert_eq!(opens("[THINK]", "[/INST][THINK]"), "[/THINK]");
    assert_eq!(opens("<|START_THINKING|>", "<|START_THINKING|>"), "<|END_THINKING|><|START_RESPONSE|>");
    for prompt in ["<|im_start|>assistant\n", "<think>\n\n</think>\n\n", "[THINK]"] {
        assert_eq!(opens("<think>", prompt), "");
    }
    assert_eq!(opens("{{ messages }}", "<think>\n"), "");
}

/// Every entry of the table is detected from a template that writes it, and parsed.
#[test]
fn thoughts_by_template() {
    let thoughts = |source: &str| Syntax::of_model(source, |_| false).thoughts;
    for marks in MARKS {
        let Marks { open, close, answer } = marks;
        let [before, after] = answer.unwrap_or_default();
        let source = format!("{{% if x %}}{open}{{{{ y }}}}{close}{before}{{{{ z }}}}");
        assert_eq!(thoughts(&source), Some(Thoughts::Marked(marks)));
        let same = MARKS.iter().filter(|other| open.contains(other.open) && answer == &other.answer);
        assert!(same.count() == 1, "{open}");
        let of = |thinks| ParserOptions {
            thoughts: Some(Thoughts::Marked(marks)),
            thinks,
            ..options(Format::Generic)
        };
        let text = format!("\nWhy <b>?\n{close}\n\n{before}Yes. {after}");
        for said in [read_any(&of(true), &text), read_any(&of(false), &format!("{open}{text}"))] {
            assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("Why <b>?", "Yes. "), "{open}");
        }
        let said = read_any(&of(false), &format!("{before}Yes.{after}"));
        assert_eq!((said.reasoning.as_str(), said.content.as_str()), ("", "Yes."), "{open}");
        let begun = &open[..open.floor_char_boundary(open.len() - 1)];
        assert_eq!(read_any(&of(false), begun).content, begun);
    }
    assert_eq!(thoughts("<|channel|>{{ x }}<|message|>{{ y }}<|call|>"), Some(Thoughts::Channels));
    assert_eq!(thoughts("{{ messages }}"), None);
}

#[test]
fn generic_messages_tell_of_tools_and_calls() {
    let call =
        ToolCall { id: Some("1".into()), name: "weather".into(), arguments: "{\"b\": 1, \"a\": 2}".into() };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hi"),
        Message { tool_calls: vec![call], ..Message::new("assistant", "") },
        Message { name: Some("weather".into()), ..Message::new("tool", "rain") },
        Message::new("tool", "sun"),
    ];
    let shown = Format::Generic.messages(&messages, &[weather()]);
    assert!(
        shown[0].content.starts_with("Be brief.\n\nThese tools") && shown[0].content.contains("\"weather\"")
    );
    assert_eq!(shown[2].content, "{\"tool_calls\":[{\"name\":\"weather\",\"arguments\":{\"b\":1,\"a\":2}}]}");
    let answers = "{\"tool_response\": \"rain\", \"name\": \"weather\"}\n{\"tool_response\": \"sun\"}";
    assert_eq!((shown[3].role.as_str(), shown[3].content.as_str(), shown.len()), ("user", answers, 4));
    assert_eq!(Format::Hermes.messages(&messages, &[]), messages);
    let spoken = Message {
        content: "I \"look\".".into(),
        reasoning_content: Some("hm".into()),
        ..messages[2].clone()
    };
    let shown = &Format::Generic.messages(&[spoken], &[])[0];
    let (text, calls) = shown.content.split_once('\n').unwrap();
    assert_eq!((text, shown.reasoning_content.as_deref()), ("I \"look\".", Some("hm")));
    assert!(calls.starts_with("{\"tool_calls\"") && shown.tool_calls.is_empty(), "{calls}");
}

#[test]
fn thoughts_before_a_call_in_channels_are_its_text() {
    let calls = vec![ToolCall { name: "weather".into(), ..ToolCall::default() }];
    let thinking = |content: &str| Message {
        reasoning_content: Some("hm".into()),
        tool_calls: calls.clone(),
        ..Message::new("assistant", content)
    };
    let shown = Format::Harmony.messages(&[thinking(""), thinking("I look.")], &[]);
    assert_eq!((shown[0].content.as_str(), shown[1].content.as_str()), ("hm", "hm\n\nI look."));
    assert!(shown.iter().all(|message| message.reasoning_content.is_none()));
    let answer = Message { reasoning_content: Some("hm".into()), ..Message::new("assistant", "It rains.") };
    assert_eq!(Format::Harmony.messages(std::slice::from_ref(&answer), &[]), [answer]);
}

#[test]
fn a_grammar_is_only_for_tools_that_may_be_called() {
    let tools = [weather()];
    let wanted = |choice| Wanted {
        tools: &tools,
        choice,
        parallel: true,
        thoughts: None,
        thinks: false,
        answer: None,
        token: &|_| None,
    };
    assert_eq!(Format::Hermes.grammar(&wanted(&Choice::None)), None);
    let other = Choice::Named("other".into());
    assert_eq!(Format::Hermes.grammar(&wanted(&other)), None);
    assert!(Format::Hermes.grammar(&wanted(&Choice::Auto)).is_some());
}

/// Strings that matter to some format, in any order.
fn message() -> impl Strategy<Value = String> {
    let words = [
        "<think>",
        "</think>",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "weather>",
        "<parameter=",
        "city>",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<minimax:tool_call>",
        "<invoke name=\"",
        "<parameter name=\"",
        "\">",
        "</invoke>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|start|>",
        "<|channel|>",
        "analysis",
        " to=functions.",
        "<|message|>",
        "<|end|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```",
        "```tool_code\n",
        "weather(",
        "print(",
        "<start_function_call>",
        "call:",
        "weather{",
        "city:",
        "<escape>",
        "<end_function_call>",
        "<|tool_call>",
        "<|\"|>",
        "<tool_call|>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<TOOLCALL>",
        "<|START_ACTION|>",
        "\"tool_name\": ",
        "<|tools_prefix|>",
        "<function_calls>",
        "</function_calls>",
        "weather\n",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.weather:0",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "[weather(",
        "city=",
        "'",
        "True",
        ")",
        "<|python_tag|>",
        "[",
        "]",
        "{",
        "}",
        "{\"name\": ",
        "\"weather\"",
        ", \"arguments\": ",
        "\"parameters\": ",
        "{\"tool_calls\": [",
        "{\"response\": \"",
        "\"",
        "\\",
        "\\u00e9",
        "\\ud83d",
        "\n",
        " ",
        "é→😀",
        "text",
        ",",
        ":",
        "1",
        "<",
        "\"id\": ",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..24)
        .prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same(text in message(), cuts in proptest::collection::vec(any::<u16>(), 0..12)) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (text.len() + 1)).collect();
        ends.retain(|at| text.is_char_boundary(*at));
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        for format in Format::ALL.iter().map(|(_, format)| Some(*format)).chain([None]) {
            for (thinks, marks) in [(false, 0), (true, 0), (false, 1)] {
                let marks = [&THINK, &MARKS[2]][marks];
                let thoughts = Some(Thoughts::Marked(marks));
                let options = ParserOptions { format, thoughts, thinks, ..options(Format::Hermes) };
                let whole = read(&options, [text.as_str()]);
                prop_assert_eq!(&read(&options, ends.windows(2).map(|at| &text[at[0]..at[1]])), &whole);
            }
        }
    }
}

/// Time must be linear in the text: otherwise this would take hours.
#[test]
fn long_texts_in_small_pieces() {
    for (format, piece) in [
        (Format::Hermes, "<tool_call"),
        (Format::Hermes, " "),
        (Format::Hermes, "<tool_call>{\"name\": \"a\", \"arguments\": {\"b\": 1}}</tool_call>"),
        (Format::Qwen3Coder, "<function=a><parameter=b>\n\n</parameter>"),
        (Format::Glm, "<tool_call>a\n<arg_key>b</arg_key><arg_value>\n\n</arg_value>"),
        (Format::Glm, "<tool_call>"),
        (Format::MiniMax, "<invoke name=\"a\"><parameter name=\"b\">"),
        (Format::Mistral, "[TOOL_CALLS]["),
        (Format::Llama3, "{\"name\": \""),
        (Format::Generic, "{\"response\": \"\\\\"),
        (Format::MistralArgs, "[TOOL_CALLS]a[ARGS]{\"b\": 1}"),
        (Format::MistralArgs, "[TOOL_CALLS]"),
        (Format::Harmony, "<|channel|>analysis<|message|>"),
        (Format::Harmony, "<|start|>"),
        (Format::DeepSeek, "<｜tool▁call▁begin｜>"),
        (Format::KimiK2, "<|tool_call_begin|>"),
        (Format::FunctionGemma, "<start_function_call>call:a{b:<escape>x"),
        (Format::FunctionGemma, "<start_function_call>"),
        (Format::Gemma4, "<|tool_call>call:a{b:<|\"|>x"),
        (Format::Gemma4, "<|tool_call>"),
        (Format::ToolCode, "```tool_code\n"),
        (Format::ToolCode, "```tool_code\na(b='x'"),
        (Format::Granite3, "<|tool_call|>[{\"name\": \"a\", \"arguments\": {}}"),
        (Format::Apertus, "<|tools_prefix|>[{\"a\": {\"b\": 1}}"),
        (Format::Olmo3, "<function_calls>"),
        (Format::Olmo3, "<function_calls>\na(b='x"),
        (Format::Glm4, "weather"),
        (Format::Glm4, "weather\n"),
        (Format::Pythonic, "[a(b='x"),
        (Format::Pythonic, "[a"),
    ] {
        let mut parser = Parser::new(options(format));
        let mut bytes = 0;
        for _ in 0..200_000 / piece.len() * 10 {
            parser.push(piece);
            bytes += piece.len();
        }
        parser.finish();
        assert!(bytes > 1_000_000);
    }
}
