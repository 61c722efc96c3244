//! Templates in the styles of published models, and malicious templates.

use super::*;

fn turns(list: &[(&str, &str)]) -> Vec<Message> {
    list.iter().map(|(role, content)| Message::new(*role, *content)).collect()
}

fn render(source: &str, list: &[(&str, &str)]) -> Result<String, ChatError> {
    ChatTemplate::with_tokens(source, "<s>".into(), "</s>".into())?.render(&turns(list), true)
}

const TALK: &[(&str, &str)] =
    &[("system", "Be brief."), ("user", " Hi! "), ("assistant", "Hello."), ("user", "2+2?")];

#[test]
fn built_in_templates() {
    let rendered = |name| render(built_in(name).unwrap(), TALK).unwrap();
    assert_eq!(
        rendered("bitnet"),
        "<s>System: Be brief.<|eot_id|>User: Hi!<|eot_id|>Assistant: Hello.<|eot_id|>User: \
         2+2?<|eot_id|>Assistant: "
    );
    assert_eq!(
        rendered("chatml"),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi! \
         <|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n\
         <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        rendered("llama3"),
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe \
         brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

/// As in Jinja2 3.1, every line end becomes a newline, also in a literal; an escape is kept.
#[test]
fn ends_of_lines_as_jinja2_reads_them() {
    let lf =
        "{% for message in messages %}\n<user>\n{{ message.content + '\n|' + \"\\r\\n\" }}\n{% endfor %}";
    let want = render(lf, &[("user", "a\r\nb")]).unwrap();
    assert!(want.contains("a\r\nb\n|\r\n"), "{want:?}");
    for end in ["\r\n", "\r"] {
        assert_eq!(render(&lf.replace('\n', end), &[("user", "a\r\nb")]).unwrap(), want, "{end:?}");
    }
}

#[test]
fn no_generation_prompt_unless_asked() {
    let template =
        ChatTemplate::with_tokens(built_in("chatml").unwrap(), String::new(), String::new()).unwrap();
    let text = template.render(&turns(&[("user", "a")]), false).unwrap();
    assert_eq!(text, "<|im_start|>user\na<|im_end|>\n");
}

/// Blocks on their own lines, the system message merged into the first user turn, alternation enforced.
const MISTRAL_LIKE: &str = "{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'].strip() + eos_token }}
    {%- endif %}
{%- endfor %}
";

#[test]
fn mistral_style() {
    assert_eq!(
        render(MISTRAL_LIKE, TALK).unwrap(),
        "<s>[INST]  Hi! [/INST] Hello.</s>[INST] Be brief.\n\n2+2?[/INST]"
    );
    let refused = render(MISTRAL_LIKE, &[("assistant", "a"), ("user", "b")]).unwrap_err();
    assert!(
        matches!(&refused, ChatError::Refused { message } if message.starts_with("roles must alternate")),
        "{refused}"
    );
}

/// Turns as `<u>` and `<a>`, and a system message at the start as `<s>`.
const STRICT: &str = "{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}
    {%- if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}
    {{- '<' ~ m.role[:1] ~ '>' ~ m.content }}
{%- endfor %}";
/// The same without the system.
const NO_SYSTEM: &str = "{%- for m in messages %}
    {%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}
    {{- '<' ~ m.role[:1] ~ '>' ~ m.content }}
{%- endfor %}";

#[test]
fn refused_conversations_are_rendered_in_another_form() {
    let (s, d, u, a) = ("system", "developer", "user", "assistant");
    // Each conversation, and its text with both templates.
    for (talk, strict, no_system) in [
        (&[(s, "S"), (u, "q")][..], "<s>S<u>q", "<u>S\n\nq"),
        (&[(s, "S"), (s, "T"), (u, "q")], "<s>S\n\nT<u>q", "<u>S\n\nT\n\nq"),
        (&[(s, "S"), (d, "T"), (u, "q")], "<s>S\n\nT<u>q", "<u>S\n\nT\n\nq"),
        (&[(d, "S"), (u, "q")], "<s>S<u>q", "<u>S\n\nq"),
        (
            &[(s, "S"), (u, "q"), (a, "r"), (s, "T"), (u, "t")],
            "<s>S\n\nT<u>q<a>r<u>t",
            "<u>S\n\nq<a>r<u>T\n\nt",
        ),
        (&[(u, "q"), (s, "S")], "<s>S<u>q", "<u>q\n\nS"),
        (&[(u, "q"), (a, "r"), (s, "S")], "<u>q<a>r<u>S", "<u>q<a>r<u>S"),
        (&[(s, ""), (u, "q")], "<s><u>q", "<u>q"),
        (&[(s, "S"), (a, "r"), (u, "q")], "<s>S<a>r<u>q", "<u>S<a>r<u>q"),
        (&[(u, "q"), (u, "t"), (a, "r"), (a, "v")], "<u>q<u>t<a>r<a>v", "<u>q\n\nt<a>r\n\nv"),
        (&[(s, "S")], "<s>S", "<u>S"),
    ] {
        assert_eq!(render(STRICT, talk).unwrap(), strict, "{talk:?}");
        assert_eq!(render(NO_SYSTEM, talk).unwrap(), no_system, "{talk:?}");
    }
    // Templates that omit a message instead of refusing it; a form in which it is shown is not changed.
    let last_system = "{% for m in messages if m.role == 'system' %}{% set ns.s = m.content %}{% endfor %}";
    let last_system = format!(
        "{{% set ns = namespace(s='') %}}{last_system}{{{{ ns.s }}}}<{{{{ messages[-1].content }}}}>"
    );
    for (source, want) in [
        ("{% for m in messages if m.role == 'user' %}<u>{{ m.content }}{% endfor %}", "<u>S\n\nT\n\nq"),
        (&last_system, "S\n\nT<q>"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "STQ"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "STq"),
    ] {
        assert_eq!(render(source, &[(s, "S"), (s, "T"), (u, "q")]).unwrap(), want, "{source}");
    }
}

#[test]
fn ids_of_calls_become_short_where_others_are_refused() {
    let source = "{% macro short(role, id) %}{% if id | length != 9 %}{{ raise_exception('9 letters') }}\
                  {% endif %}{{ role[:1] ~ id[-1:] }}{% endmacro %}{% for m in messages %}\
                  {% for call in m.tool_calls or [] %}{{ short(m.role, call.id) }}{% endfor %}\
                  {% if m.role == 'tool' %}{{ short(m.role, m.tool_call_id) }}{% endif %}{% endfor %}";
    let call = |id: Option<&str>| ToolCall { id: id.map(str::to_owned), ..ToolCall::default() };
    let calls = |ids: [Option<&str>; 2]| Message {
        tool_calls: ids.map(call).into(),
        ..Message::new("assistant", "")
    };
    let result =
        |id: Option<&str>| Message { tool_call_id: id.map(str::to_owned), ..Message::new("tool", "r") };
    let template = ChatTemplate::with_tokens(source, String::new(), String::new()).unwrap();
    for (ids, want) in [
        ([Some("call_of_one"), Some("call_of_two")], "a1a2t2t1"),
        ([Some("call00001"), Some("call00002")], "a1a2t2t1"),
    ] {
        let talk = [calls(ids), result(ids[1]), result(ids[0])];
        assert_eq!(template.render(&talk, true).unwrap(), want);
    }
    let talk = [calls([None, None]), result(None), result(None)];
    assert_eq!(template.render(&talk, true).unwrap(), "a1a2t1t2");
}

#[test]
fn pythons_words() {
    let cases = [
        ("{{ ' a b '.strip().split(' ')[-1].upper() }}", "B"),
        ("{{ messages[0].content.startswith('H') and not 'z' in messages[0]['content'] }}", "True"),
        (
            "{{ {'a': [1, 2.5, none, true], 'b': 'x\"é\\n'} | tojson }}",
            r#"{"a": [1, 2.5, null, true], "b": "x\"é\n"}"#,
        ),
        ("{{ [1, {'k': []}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"k\": []\n  }\n]"),
        (
            "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}{%- if \
             loop.last %}{% break %}{% endif -%}{%- endfor -%}{{ ns.n }}",
            "1",
        ),
        ("{% generation %}x{% endgeneration %}", "x"),
        (
            "{{ tools is none }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "True 1",
        ),
        (
            "{{ (messages | last).role ~ '-' ~ messages[-1]['content'][:2] ~ 3 * 4 ~ '-' ~ (-1 + 2) }}",
            "user-Hi12-1",
        ),
        ("{% set a, b = 'x', 'y' %}{{ a ~ b }}{% raw %}{{ a ~ b }}{% endraw %}{# a ~ b #}", "xy{{ a ~ b }}"),
        (
            "{% macro turn(role, text='?') %}<{{ role + ':' + text }}>{% endmacro %}{{ turn('a') + turn('b', \
             text='c' + 'd') }}",
            "<a:?><b:cd>",
        ),
        ("{{ 'yes' if messages|length >= 1 and 'a' in ['a', 'b'] else 'no' }}", "yes"),
        ("{{ messages[0].get('name', 'none') ~ messages[0].items() | length }}", "none2"),
    ];
    for (source, want) in cases {
        assert_eq!(
            render(source, &[("user", "Hi")]).map_err(|err| err.to_string()).as_deref(),
            Ok(want),
            "{source}"
        );
    }
    let date = render("{{ strftime_now('%Y-%m-%d') }}", TALK).unwrap();
    assert_eq!(date.len(), 10, "{date}");
}

#[test]
fn filters_and_methods_of_published_templates() {
    let cases = [
        (
            "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\nb' | indent(width=1) }}",
            "a\n    b\n\n    c|  a\n  b|a\n b",
        ),
        ("{{ '{0} and {0}: {{}} {1:>3}'.format('a', 3) }}", "a and a: {}   3"),
        ("{{ '{}-{key}'.format('a', key=1.5) }}", "a-1.5"),
        ("{{ [LIST] | length }}", "2000"),
    ];
    for (source, want) in cases {
        let source = source.replace("LIST", &vec!["'x'"; 2000].join(", "));
        assert_eq!(
            render(&source, TALK).map_err(|err| err.to_string()).as_deref(),
            Ok(want),
            "{source:.100}"
        );
    }
    for wrong in
        ["{{ '{}{}'.format(1) }}", "{{ '{} {0}'.format(1) }}", "{{ '{'.format() }}", "{{ '}'.format() }}"]
    {
        assert!(render(wrong, TALK).is_err(), "{wrong}");
    }
}

/// A template with tool support, written for this test.
const WITH_TOOLS: &str = "{%- if tools %}{{- 'TOOLS ' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.reasoning_content is defined %}{{- '(' + message.reasoning_content + ')' }}{% endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '[' + call.id + ' ' + call.function.name + ' ' + (call.function.arguments | tojson) + ']' }}
        {%- for key, value in call.function.arguments | items %}{{- key ~ '=' ~ value ~ ';' }}{%- endfor %}
    {%- endfor %}
    {%- if message.tool_call_id is defined %}
        {{- '{' + message.tool_call_id + ' ' + message.name + '}' }}
    {%- endif %}
{%- endfor %}{% if enable_thinking is false %}!{% endif %}";

#[test]
fn tools_calls_and_answers() {
    let template = ChatTemplate::with_tokens(WITH_TOOLS, String::new(), String::new()).unwrap();
    let call =
        ToolCall { id: Some("c1".into()), name: "f".into(), arguments: r#"{"z": 1.5, "a": ["é"]}"#.into() };
    let text = ToolCall { id: Some("c2".into()), name: "g".into(), arguments: "no JSON".into() };
    let messages = [
        Message { name: Some("ann".into()), ..Message::new("user", "Hi") },
        Message {
            reasoning_content: Some("hm".into()),
            tool_calls: vec![call],
            ..Message::new("assistant", "")
        },
        Message { tool_call_id: Some("c1".into()), name: Some("f".into()), ..Message::new("tool", "4") },
    ];
    let tools = vec![serde_json::json!({"zeta": 1, "alpha": {"b": null, "a": true}})];
    let variables =
        serde_json::json!({"enable_thinking": false, "messages": [], "tools": null, "bos_token": "x"});
    let variables = variables.as_object().unwrap().clone();
    let extras = Extras { tools, variables, ..Extras::default() };
    let rendered = template.render_with(&messages, &extras, true).unwrap();
    assert_eq!(
        rendered,
        "TOOLS {\"zeta\": 1, \"alpha\": {\"b\": null, \"a\": true}}<user>Hi<assistant>(hm)\
         [c1 f {\"z\": 1.5, \"a\": [\"é\"]}]z=1.5;a=['é'];<tool>4{c1 f}!"
    );
    let broken = [Message { tool_calls: vec![text], ..Message::new("assistant", "") }];
    let quoted =
        "{%- for call in messages[0].tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}";
    let template = ChatTemplate::with_tokens(quoted, String::new(), String::new()).unwrap();
    assert_eq!(template.render(&broken, true).unwrap(), "\"no JSON\"");
    let nested = [Message {
        tool_calls: vec![ToolCall { arguments: "[".repeat(120) + &"]".repeat(120), ..ToolCall::default() }],
        ..Message::new("assistant", "")
    }];
    assert!(template.render(&nested, true).is_err(), "nested too deep");
}

/// Templates in DeepSeek's style show calls only if there is no content, so that a message with both becomes
/// two; Llama 3's shows only the call; others require a text.
#[test]
fn content_of_a_call_is_none_where_only_that_shows_the_call() {
    let call = ToolCall { id: Some("c".into()), name: "f".into(), arguments: "{}".into() };
    let messages = [
        Message { tool_calls: vec![call.clone()], ..Message::new("assistant", "") },
        Message { tool_calls: vec![call], ..Message::new("assistant", "said") },
        Message::new("assistant", ""),
    ];
    let calls = "{% for call in m.tool_calls %}[{{ call.function.name }}]{% endfor %}";
    for (turn, want) in [
        (
            format!("{{% if m.content is none %}}{calls}{{% else %}}({{{{ m.content }}}}){{% endif %}}"),
            "[f](said)[f]()",
        ),
        (
            format!("{{% if m.tool_calls %}}{calls}{{% else %}}({{{{ m.content }}}}){{% endif %}}"),
            "[f](said)[f]()",
        ),
        (format!("{{{{ m.content + '|' }}}}{calls}"), "|[f]said|[f]|"),
    ] {
        let source = format!("{{% for m in messages %}}{turn}{{% endfor %}}");
        let template = ChatTemplate::with_tokens(&source, String::new(), String::new()).unwrap();
        assert_eq!(template.render(&messages, false).unwrap(), want, "{source}");
    }
}

#[test]
fn long_conversations_fit() {
    let turn = "word ".repeat(2000);
    let list: Vec<_> = (0..101).map(|n| (["user", "assistant"][n % 2], turn.as_str())).collect();
    for source in
        [MISTRAL_LIKE, built_in("chatml").unwrap(), built_in("llama3").unwrap(), built_in("bitnet").unwrap()]
    {
        assert!(render(source, &list).unwrap().len() > 1_000_000);
    }
}

#[test]
fn errors_name_the_unknown_filter_or_test() {
    for (source, name) in [
        ("{{ messages | map('attr', 'role') | list }}", "filter attr is unknown"),
        ("{{ messages | select('fresh') | list }}", "test fresh is unknown"),
        ("{{ messages | rejectattr('role', 'fresh') | list }}", "test fresh is unknown"),
        ("{{ messages | fresh }}", "filter fresh is unknown"),
    ] {
        let said = render(source, &[("user", "Hi")]).unwrap_err().to_string();
        assert!(said.contains(name), "{source}: {said}");
    }
}

#[test]
fn harm_is_an_error() {
    let doubling =
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = BODY %}{% endfor %}";
    let mut hostile: Vec<String> = [
        "ns.s ~ ns.s",
        "ns.s + ns.s",
        "[ns.s, ns.s]",
        "{'a': ns.s, 'b': ns.s}",
        "(ns.s, ns.s)",
        "ns.s, ns.s",
        "ns.s | replace('a', ns.s)",
        "ns.s.replace('a', ns.s)",
        "ns.s.join([ns.s, ns.s, ns.s])",
        "[ns.s, ns.s] | join(ns.s)",
        "ns.s * 2",
        "2 * ns.s",
        "'a' * 100000000",
        "ns.s | indent(100000000)",
        "'%100000000d' | format(1)",
        "ns.s | upper ~ ns.s",
        "(ns.s ~ '') ~ (ns.s ~ '')",
        "'x' ~ ns.s ~ ns.s[0:]",
        "'%s%s' % (ns.s, ns.s)",
        "'{:>100000000}'.format('a')",
        "'{}{}'.format(ns.s, ns.s)",
        "'{0}{0}'.format(ns.s)",
        "ns.s ~ (ns.s | indent(1000))",
        "ns.s | indent(width=100000000)",
    ]
    .iter()
    .map(|body| doubling.replace("BODY", body))
    .collect();
    hostile.extend(
        [
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{% macro f(s) %}{{ f(s ~ s) }}{% endmacro %}{{ f('aaaaaaaaaaaaaaaa') }}",
            "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
            "{% for i in [1] recursive %}{{ loop([i, i]) }}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = ns.x, %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set n = namespace() %}{% set n.x = \
             ns.x %}{% set ns.x = n %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set o = ns.x %}{% macro f() %}{{ o \
             }}{% endmacro %}{% set ns.x = f %}{% endfor %}",
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}",
            "{% set x %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endset %}{% set ns = namespace(x=x) %}{% for i in \
             range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
            "{% include 'x' %}",
            "{% extends 'x' %}",
            "{% call f() %}{% endcall %}",
            "{{ unknown() }}",
            "{{",
            "{% if %}",
            "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = dict(a=ns.x) %}{% endfor \
             %}",
            "{{ '%1000000d' | format(1) }}",
            "{{ '%1000000d' % 1 }}",
            "{{ '%s' * 2 % 1 }}",
            "{{ '%*d' | format(1000000, 1) }}",
            "{{ '{:{}}'.format('a', 1000000) }}",
            "{{ [1] | batch(1000000000, 'x') }}",
            "{{ [1] | slice(1000000000) }}",
            "{{ [1] | tojson(indent=1000000000) }}",
            "{{ range(1000000000) }}",
            "{{ 'a'.ljust(1000000000) }}",
        ]
        .map(str::to_owned),
    );
    // Deeply nested syntax.
    hostile.push("{{ ".to_owned() + &"(".repeat(100_000) + "1" + &")".repeat(100_000) + " }}");
    hostile.push("{% if 1 %}".repeat(50_000));
    hostile.push("{{ ".to_owned() + &"-".repeat(100_000) + "1 }}");
    hostile.push("{{ ".to_owned() + &"not ".repeat(100_000) + "1 }}");
    hostile.push("{{ 1".to_owned() + &"~1".repeat(100_000) + " }}{{");
    hostile.push("{{ 1".to_owned() + &".a".repeat(100_000) + " }}{{");
    hostile.push("{{ 1".to_owned() + &" if 1 else 1".repeat(100_000) + " }}{{");
    hostile.push("{% if 1 %}".to_owned() + &"{% elif 1 %}".repeat(50_000) + "{% endif %}{{");
    hostile.push("{% if 1 %}x{% else %}".repeat(50_000));
    for chain in [
        "~1",
        ".a",
        "|upper",
        "[0]",
        "()",
        "|upper~1",
        " and 1",
        " is defined",
        "+-1",
        "==1",
        " if 1 else 1",
        " in [1]",
    ] {
        hostile.push("{{ 1".to_owned() + &chain.repeat(500 / chain.len().div_ceil(3)) + " }}{{");
    }
    hostile.push("{{ 'aaaaaaaaaaaaaaaa'".to_owned() + &"|upper".repeat(100_000) + " }}{{");
    for source in hostile {
        let result = render(&source, TALK);
        let message = result
            .map(|text| format!("{text:.200}"))
            .expect_err(&source[..source.len().min(200)])
            .to_string();
        assert!(!message.contains("too many arguments"), "{source:.200}: {message}");
    }
}

#[test]
fn an_unbounded_repetition_of_plain_text_is_an_error() {
    let source = format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "x".repeat(1 << 20));
    assert!(render(&source, TALK).is_err());
}
