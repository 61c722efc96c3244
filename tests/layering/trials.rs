//! Kinds of input that other programs are reported to fail on, and the tests of Sterna's behaviour for each.
//! A new kind needs a test and a line here.

use std::fs;
use std::path::Path;

const TRIALS: &[(&str, &[&str])] = &[
    (
        "tools of the Responses API that are not functions, and their items",
        &[
            "tests/cli/serve/codex.rs::recorded_codex_requests_are_served",
            "tests/cli/serve/codex.rs::hosted_tools_cannot_be_chosen",
        ],
    ),
    (
        "SentencePiece vocabularies that exist only as tokenizer.json",
        &[
            "tests/files/convert/metaspace.rs::metaspace_ids_match_golden_ids",
            "tests/files/convert/metaspace.rs::sentencepiece_vocabulary_is_not_taken_for_another",
        ],
    ),
    (
        "NaN logits",
        &[
            "tests/engine/broken_logits.rs::first_broken_stage_is_named",
            "tests/cli/serve/nan_logits.rs::nan_logits_are_a_server_error",
        ],
    ),
    (
        "Jinja2 features that chat templates use",
        &[
            "src/tokenizer/chat/jinja_golden.rs::shapes_of_published_templates_render_as_in_jinja2",
            "src/tokenizer/chat/jinja_golden.rs::constructs_render_as_in_jinja2",
        ],
    ),
    (
        "prompts longer than the context, for Anthropic clients",
        &["tests/cli/serve/hostile.rs::long_prompts_are_refused"],
    ),
    (
        "requests refused while the body is being sent, clients that close their writing side",
        &[
            "tests/cli/serve/hostile.rs::client_refused_while_sending_gets_the_error",
            "tests/cli/serve/hostile.rs::client_that_closes_its_writing_side_is_answered",
        ],
    ),
    (
        "checksums in the first line of a system prompt",
        &[
            "src/serve/api/anthropic/request.rs::the_line_of_billing_is_left_out",
            "tests/cli/serve/families.rs::claude_code_conversations_share_a_prefix",
        ],
    ),
    (
        "headers that pages of other origins request",
        &["tests/cli/serve/hostile.rs::pages_of_other_origins_are_refused"],
    ),
    (
        "the token that completes a grammar",
        &[
            "tests/cli/serve/structured.rs::every_token_of_structured_text_is_listed",
            "tests/engine/structured.rs::complete_texts_end_without_an_end_token",
        ],
    ),
    (
        "numbers of unlimited length",
        &[
            "src/grammar/tests.rs::numbers_come_to_an_end",
            "src/grammar/numbers.rs::a_schema_that_names_longer_numbers_has_them",
        ],
    ),
    (
        "null in tool schemas",
        &[
            "src/serve/fields.rs::null_is_absent_and_wrong_values_are_named",
            "tests/cli/serve/structured.rs::unenforceable_schemas_fail_only_if_strict",
        ],
    ),
    (
        "schema keywords that exclude nothing, escapes in references",
        &[
            "src/grammar/tests.rs::keywords_that_exclude_nothing_are_no_fault",
            "src/grammar/schema/tests.rs::references_lead_into_the_schema",
            "src/grammar/schema/tests.rs::words_of_constants_and_what_asserts_nothing_are_no_keywords",
        ],
    ),
    (
        "one tool's schema that does not compile",
        &[
            "src/grammar/tests.rs::what_does_not_compile_is_left_out_and_named",
            "src/grammar/tests.rs::schemas_in_lark_are_named_by_their_tools",
            "tests/cli/serve/structured.rs::unenforceable_schemas_fail_only_if_strict",
        ],
    ),
    (
        "objects whose schema does not mention further properties",
        &[
            "src/grammar/schema/tests.rs::objects_have_the_properties_that_are_named",
            "src/grammar/schema/tests.rs::schemas_of_one_object_share_their_names",
            "tests/cli/serve/structured.rs::every_kind_of_grammar_is_enforced",
            "tests/cli/serve/dialects.rs::schemas_and_reasoning_work_in_every_api",
            "tests/cli/serve/grpc.rs::grpc_answers_equal_http_answers",
            "tests/cli/run.rs::grammar_constrains_the_text",
        ],
    ),
    (
        "tools without parameters",
        &[
            "src/serve/tool_config.rs::tools_without_parameters_have_an_empty_object",
            "tests/cli/serve/structured.rs::tools_without_parameters_are_called_without_arguments",
        ],
    ),
    (
        "schemas of answers that cannot be enforced, and thousands of references",
        &[
            "src/grammar/schema/tests.rs::thousands_of_references_are_enforced",
            "src/grammar/schema/tests.rs::unions_of_definitions_are_told_apart",
            "tests/cli/serve/structured.rs::unenforceable_forms_of_answers_are_refused",
            "tests/cli/serve/grpc.rs::grpc_refuses_invalid_requests_by_field",
        ],
    ),
    (
        "a schema next to the type of a response format",
        &["tests/cli/serve/structured.rs::every_kind_of_grammar_is_enforced"],
    ),
    ("texts in logit_bias", &["tests/cli/serve/hostile.rs::values_out_of_range_are_refused"]),
    (
        "redundant slashes in paths",
        &[
            "src/serve/api/mod.rs::paths_have_no_empty_parts",
            "tests/cli/serve/hostile.rs::unknown_paths_and_methods_are_refused",
        ],
    ),
    ("a byte order mark before a request", &["tests/cli/serve/hostile.rs::invalid_bodies_are_refused"]),
    (
        "digests in ollama's lists",
        &[
            "src/cli/serve.rs::digest_follows_path_size_and_time",
            "tests/cli/serve/families.rs::ollama_endpoints_work",
        ],
    ),
    (
        "several names of a model",
        &[
            "src/cli/models_args.rs::alias_names_the_model_of_the_file_flag",
            "tests/cli/serve/in_process.rs::in_process_server_takes_command_line_flags",
            "tests/cli/serve/multi_model.rs::requests_choose_their_model_by_name",
        ],
    ),
    (
        "keep_alive of 0 with a prompt",
        &[
            "src/serve/api/keep_alive.rs::zero_has_many_spellings",
            "tests/cli/serve/multi_model.rs::keep_alive_zero_unloads_after_the_answer",
        ],
    ),
    (
        "numbers in place of texts",
        &["tests/cli/serve/embeddings.rs::invalid_embedding_requests_name_the_field"],
    ),
    (
        "half of a character in a request",
        &[
            "src/serve/http/surrogates.rs::lone_surrogates_are_found_and_replaced",
            "tests/cli/serve/families.rs::ollama_endpoints_work",
        ],
    ),
    (
        "properties of the model and its chat template that a server reports",
        &[
            "src/serve/details.rs::numbers_of_weights_have_letters",
            "src/tokenizer/chat/abilities.rs::what_is_shown_is_found_out",
            "tests/cli/serve/answers.rs::server_describes_its_model_and_state",
        ],
    ),
    (
        "system messages that a chat template refuses or omits, and roles that do not alternate",
        &[
            "src/tokenizer/chat/tests.rs::refused_conversations_are_rendered_in_another_form",
            "src/tools/templates_tests.rs::every_template_shows_every_word_of_agents",
            "tests/cli/serve/histories.rs::system_reaches_templates_without_it_in_every_api",
            "tests/cli/text.rs::chat_uses_the_given_template",
        ],
    ),
    (
        "ids of tool calls that a chat template refuses",
        &["src/tokenizer/chat/tests.rs::ids_of_calls_become_short_where_others_are_refused"],
    ),
    (
        "text of the assistant before a tool call",
        &[
            "src/tokenizer/chat/tests.rs::content_of_a_call_is_none_where_only_that_shows_the_call",
            "src/tools/tests.rs::generic_messages_tell_of_tools_and_calls",
        ],
    ),
    (
        "tool results that are null, missing, not text, or of unknown types",
        &[
            "src/serve/results.rs::results_become_text",
            "src/serve/api/anthropic/request.rs::blocks_of_tools_of_the_api_become_calls_and_results",
            "tests/cli/serve/histories.rs::every_api_takes_any_result_of_a_tool",
        ],
    ),
    (
        "documents, and images in tool results",
        &[
            "src/serve/api/anthropic/request.rs::documents_are_texts_and_images_of_tools_a_sentence",
            "tests/cli/serve/dialects.rs::documents_and_tool_images_are_accepted",
        ],
    ),
    (
        "truncated downloads",
        &[
            "tests/files/gguf_header.rs::truncated_files_have_a_readable_header",
            "tests/cli/run.rs::run_rejects_invalid_model_files",
        ],
    ),
    (
        "flags and environment variables of llama.cpp",
        &[
            "src/cli/llama_flags/mod.rs::flags_of_llama_cpp_are_taken_or_refused_with_the_way_out",
            "src/cli/llama_flags/mod.rs::numbers_below_their_range_are_said_to_be_so",
            "tests/cli/llama_flags.rs::inspect_takes_the_model_by_flag",
            "tests/cli/llama_flags.rs::tokenize_prompt_parses_specials_and_escapes",
            "tests/cli/llama_flags.rs::every_llama_cpp_flag_works_or_is_refused",
            "tests/cli/llama_flags.rs::environment_is_used_or_reported_as_ignored",
        ],
    ),
    ("CRLF in a chat template", &["src/tokenizer/chat/tests.rs::ends_of_lines_as_jinja2_reads_them"]),
    (
        "text files of Windows: CRLF and byte order marks",
        &[
            "src/cli/input.rs::a_mark_is_no_text_and_crlf_ends_a_line",
            "tests/cli/run.rs::windows_prompt_files_give_the_same_text",
            "tests/cli/text.rs::chat_accepts_windows_line_ends",
        ],
    ),
    (
        "filters and methods of chat templates",
        &["src/tokenizer/chat/tests.rs::filters_and_methods_of_published_templates"],
    ),
    (
        "metadata that is missing, not a number, or without effect",
        &[
            "src/engine/recommended.rs::numbers_out_of_range_are_refused_by_key",
            "src/model/hyper.rs::an_epsilon_that_is_missing_is_named_both_ways",
            "tests/cli/split_edit.rs::ignored_yarn_keys_are_reported",
        ],
    ),
    (
        "a field of a stage that some backend ignores",
        &[
            "tests/layering/readers.rs::readers_of_stages_name_every_field",
            "tests/layering/readers.rs::patterns_differ_from_expressions",
        ],
    ),
    (
        "folders without a model, names of parts, biases beyond the vocabulary, options without a backend",
        &[
            "tests/files/convert/hostile.rs::index_must_agree_with_the_files",
            "tests/files/convert/hostile.rs::folders_without_a_model_are_refused",
            "tests/cli/split_edit.rs::split_model_is_equal_and_merges_back",
            "tests/cli/run.rs::run_rejects_invalid_flags",
            "tests/cli/run.rs::stream_slots_work_on_the_default_backend",
        ],
    ),
];

#[test]
fn every_kind_has_existing_tests() {
    let mut missing = Vec::new();
    for (kind, tests) in TRIALS {
        assert!(!tests.is_empty(), "{kind}");
        for test in *tests {
            let (file, name) = test.split_once("::").unwrap();
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
            if !text.is_ok_and(|text| is_quick_test(&text, name)) {
                missing.push(format!("{kind}: {test}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such quick tests:\n{}", missing.join("\n"));
}

/// True if a source has a test of this name that is not ignored.
fn is_quick_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    lines.iter().position(|line| line.starts_with(&head)).is_some_and(|at| {
        let above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let attributes: Vec<_> = above.filter(|line| line.starts_with("#[")).collect();
        attributes.contains(&&"#[test]") && !attributes.iter().any(|line| line.starts_with("#[ignore"))
    })
}

#[test]
fn tests_are_found_by_name_and_attribute() {
    let text =
        "#[test]\n// Why.\nfn one() {}\nfn two() {}\n  #[test]\n  #[ignore = \"slow\"]\n  fn three() {}";
    assert!(is_quick_test(text, "one"));
    for name in ["two", "three", "on", "four"] {
        assert!(!is_quick_test(text, name), "{name}");
    }
}
