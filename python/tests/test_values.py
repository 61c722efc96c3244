"""Tests of the values that requests take and answers have: numbers of numpy, types, messages, flags."""

import asyncio
import dataclasses
import enum
import json
import math
import typing

import pytest

import sterna

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "seed": 1}


@dataclasses.dataclass
class Point:
    far: bool


class Answer(enum.Enum):
    YES = "yes"
    NO = "no"


def test_names_of_flags_are_checked_whatever_their_value():
    for flags in ({"no_such_flag": False}, {"n_gpu_layer": None}, {"logits_all": False}, {"verbose": False}):
        with pytest.raises(sterna.LoadError, match="has no parameter"):
            sterna.Engine(backend="cpu", **flags)
    for flags in ({"n_ctx": True}, {"parallel": False}):
        with pytest.raises(sterna.LoadError, match="want a value, or None"):
            sterna.Engine(backend="cpu", **flags)
    # Other spellings of both kinds, and llama.cpp's flags.
    with sterna.Engine(backend="cpu", n_ctx=512, flash_attn=False, mmap=False, reranking=False, mlock=None):
        pass


def test_false_clears_a_flag():
    prompt = "Once upon a time there was a little rabbit who lived in a wood. " * 12
    for value, reuses in ((False, False), (None, True)):
        with sterna.Engine(backend="cpu", cache_prompt=value) as engine:
            for _ in range(2):
                text = engine.generate(prompt, max_tokens=2, temperature=0)
                text.read()
        assert (text.usage["prompt_tokens_details"]["cached_tokens"] > 0) == reuses


def test_lengths_of_vectors(engine):
    def length(**parameters):
        (vector,) = engine.embed("A rabbit.", **parameters)
        return math.hypot(*vector)

    assert length() == pytest.approx(1, abs=1e-3) == length(normalize=True)
    assert (
        length(normalize=False) == pytest.approx(length(embd_normalize=-1)) and length(normalize=False) > 1.5
    )
    (vector,) = engine.embed("A rabbit.", dimensions=8, normalize=False)
    assert len(vector) == 8
    for form in ("base64", "float"):
        (vector,) = engine.embed("A rabbit.", encoding_format=form)
        assert isinstance(vector, list) and math.hypot(*vector) == pytest.approx(1, abs=1e-3)


def test_sentences_are_encoded_in_batches(engine):
    texts = [f"Rabbit {number}." for number in range(5)]
    vectors = engine.encode(texts, batch_size=2)
    plain = engine.embed(texts, normalize=False)
    assert [list(of) for of in vectors] == [pytest.approx(list(of), rel=1e-2, abs=1e-2) for of in plain]
    one = engine.encode(texts[0], normalize_embeddings=True)
    assert len(one) == len(vectors[0]) and math.hypot(*one) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match="batch_size"):
        engine.encode(texts, batch_size=0)


def test_vectors_are_arrays_where_numpy_is_installed(engine):
    numpy = pytest.importorskip("numpy")
    vectors = engine.encode(["a", "b", "c"])
    assert vectors.dtype == numpy.float32 and vectors.shape == (3, 256)
    assert engine.encode("a").shape == (256,) and engine.embed("a").shape == (1, 256)
    assert asyncio.run(engine.aembed(["a", "b"])).shape == (2, 256)


def test_numbers_of_numpy(engine):
    np = pytest.importorskip("numpy")
    tokens = np.array(engine.tokenize(PROMPT))
    same = {"max_tokens": np.int64(4), "temperature": np.float32(0), "seed": np.int32(3)}
    expected = engine.generate(PROMPT, max_tokens=4, temperature=0, seed=3).read()
    assert engine.generate(tokens, **same).read() == expected
    assert engine.generate(list(tokens), **same).read() == expected
    assert engine.detokenize(tokens) == engine.detokenize(tokens.tolist())
    assert engine.detokenize_bytes(tokens).decode().endswith(PROMPT)
    (first,) = (
        engine.generate(PROMPT, max_tokens=1, temperature=0).events().__next__()["choices"][0]["token_ids"]
    )
    biased = engine.generate(PROMPT, max_tokens=1, temperature=0, logit_bias={np.int64(first): -100})
    biased.read()
    assert biased.tokens != [first]
    with pytest.raises(sterna.RequestError, match="temperature: want a finite number, got nan"):
        engine.generate(PROMPT, temperature=np.float64("nan"))


def test_values_that_no_request_can_have(engine):
    for call, error, said in [
        (lambda: engine.generate("a\ud83d"), sterna.RequestError, "prompt: character 1 .* lone surrogate"),
        (
            lambda: engine.generate("a", temperature=math.inf),
            sterna.RequestError,
            "temperature: want a finite",
        ),
        (
            lambda: engine.chat([{"role": "user", "content": object()}]),
            TypeError,
            "messages: cannot use .* object",
        ),
        (lambda: engine.generate(7), TypeError, "prompt: want a text"),
        (lambda: engine.generate(["a", "b"]), TypeError, "generate_many"),
        (lambda: engine.detokenize(["a"]), TypeError, "tokens: want a list"),
        (lambda: engine.detokenize_bytes([10**6]), sterna.RequestError, "want tokens below"),
        (lambda: engine.generate("a", max_new_tokens=3), TypeError, "generate.. has no .* 'max_tokens'"),
        (lambda: engine.chat("a", stream=True), TypeError, "every text streams"),
        (lambda: engine.generate("a", schema=7), TypeError, "schema: want a JSON schema"),
    ]:
        with pytest.raises(error, match=said):
            call()


def test_types_are_schemas(engine):
    pydantic = pytest.importorskip("pydantic")

    class City(pydantic.BaseModel):
        big: bool

    same = {"max_tokens": 200, "temperature": 0}
    for kind, expected in [
        (City, City),
        (pydantic.TypeAdapter(typing.Optional[bool]), (bool, type(None))),
        (Point, Point),
        (typing.Literal["yes", "no"], str),
        (Answer, Answer),
        (typing.Tuple[bool, bool], tuple),
    ]:
        parsed = engine.generate(PROMPT, schema=kind, **same).parsed
        assert isinstance(parsed, expected), (kind, parsed)
    cities = engine.generate(PROMPT, schema=pydantic.TypeAdapter(typing.List[City]), **same)
    assert cities.read().startswith("[")
    assert isinstance(engine.chat("Once", response_format=City, **same).parsed, City)
    cut = engine.chat("Once", schema=City, max_tokens=2, temperature=0)
    with pytest.raises(ValueError, match="ended after 2 tokens"):
        cut.parsed  # noqa: B018
    place = {"type": "object", "properties": {"here": {"type": "boolean"}}, "required": ["here"]}
    assert set(engine.chat("Once", schema=place, **same).parsed) == {"here"}
    assert engine.generate(PROMPT, max_tokens=2).parsed is None


def test_messages_are_objects_and_answers_too(engine):
    pydantic = pytest.importorskip("pydantic")

    class Message(pydantic.BaseModel):
        role: str
        content: str
        refusal: None = None

    question = {"role": "user", "content": "Tell me a story."}
    expected = engine.chat([question], max_tokens=5, **GREEDY)
    assert engine.chat([Message(**question)], max_tokens=5, **GREEDY).read() == expected.read()
    conversations = [[question, answer, question] for answer in (expected, expected.message)]
    first, second = (engine.apply_template(conversation) for conversation in conversations)
    assert first == second and expected.text in first


def test_tokens_of_texts(engine):
    for text in (
        engine.generate(PROMPT, max_tokens=6, logprobs=2, **GREEDY),
        engine.chat(PROMPT, max_tokens=6, logprobs=True, top_logprobs=2, **GREEDY),
    ):
        assert "not read" in repr(text) and text.tokens == []
        text.read()
        assert len(text.tokens) == 6 and engine.detokenize(text.tokens) == text.text == str(text)
        assert [scored.token for scored in text.logprobs] == text.tokens
        assert "".join(scored.text for scored in text.logprobs) == text.text
        assert all(
            scored.logprob == max(scored.top.values()) and len(scored.top) == 2 for scored in text.logprobs
        )
        assert "6 tokens, length" in repr(text)
    assert engine.generate(PROMPT, max_tokens=2).read() and not engine.generate(PROMPT, max_tokens=2).logprobs


def test_answers_in_the_format_of_openai(engine):
    types = pytest.importorskip("openai").types
    answer = engine.chat("Hello", max_tokens=5, logprobs=True, **GREEDY)
    whole = types.chat.ChatCompletion.model_validate(answer.to_openai())
    assert whole.choices[0].message.content == answer.text and whole.usage.completion_tokens == 5
    assert len(whole.choices[0].logprobs.content) == 5
    text = engine.generate(PROMPT, max_tokens=5, logprobs=1, **GREEDY)
    whole = types.Completion.model_validate(text.to_openai())
    assert whole.choices[0].text == text.text and whole.choices[0].logprobs.text_offset[1] > 0


def test_functions_are_tools(engine):
    def look(where: typing.Literal["here", "there"], often: int = 1) -> dict:
        """Looks around.

        Args:
            where: The place
                to look at.
            often (int): How often.

        Returns:
            What is there.
        """
        return {"seen": where, "often": often}

    from sterna._values import tool_of

    assert tool_of(look) == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks around.",
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"enum": ["here", "there"], "description": "The place to look at."},
                    "often": {"type": "integer", "description": "How often."},
                },
                "required": ["where"],
                "additionalProperties": False,
            },
        },
    }
    no_thoughts = {str(engine.tokenize("<", add_special=False)[0]): -100}
    same = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 1, "max_tokens": 200}
    question = {"role": "user", "content": "Tell me a story."}
    answer = engine.chat([question], tools=[look], logit_bias=no_thoughts, **same)
    (result,) = answer.call_tools()
    assert json.loads(result["content"])["seen"] in ("here", "there") and result["role"] == "tool"
    assert engine.chat([question, answer, result], max_tokens=3).read()
    without = engine.chat([question], tools=[tool_of(look)], logit_bias=no_thoughts, **same)
    with pytest.raises(LookupError, match="'look' was given without a function"):
        without.call_tools()


def test_scores_equal_the_log_probabilities_of_generated_texts(engine):
    text = engine.generate(PROMPT, max_tokens=4, logprobs=1, **GREEDY)
    text.read()
    score = engine.score(PROMPT, text.text)
    assert score.is_greedy and score.logprob == pytest.approx(
        sum(of.logprob for of in text.logprobs), abs=1e-3
    )
    pairs = [
        (PROMPT, " zebra"),
        (engine.tokenize(PROMPT), text.tokens),
        ("Once upon ", "a"),
        ("Once upon", " a"),
    ]
    worse, by_tokens, spaced, usual = engine.score_many(pairs)
    assert not worse.is_greedy and worse.logprob < score.logprob
    assert by_tokens.is_greedy and by_tokens.logprob == pytest.approx(score.logprob, abs=1e-3)
    assert spaced.logprob == pytest.approx(usual.logprob, abs=1e-3)
    assert engine.score("", PROMPT).logprob < 0
    with pytest.raises(ValueError, match="at least one token"):
        engine.score(PROMPT, "")


def test_the_model_says_what_it_is(engine):
    assert "sterna-world, n_ctx 2048" in repr(engine)
    assert engine.metadata["general.name"] == "sterna-world"
    assert "tokenizer.ggml.tokens" not in engine.metadata and engine.n_vocab == 4309
    special = engine.special_tokens
    assert special["eos"] == 0 and special["cls"] is None
    assert engine.tokenize(["a", "b"]) == [engine.tokenize("a"), engine.tokenize("b")]
    assert engine.generate("", max_tokens=2).read()
    import pickle

    with pytest.raises(TypeError, match="each process loads its own"):
        pickle.dumps(engine)


def test_paths_of_models(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for path in (b"missing.gguf", "~/missing.gguf", tmp_path / "missing.gguf"):
        with pytest.raises(sterna.LoadError, match="missing.gguf") as caught:
            sterna.Engine(path, backend="cpu")
        assert "~" not in str(caught.value)


def test_saved_prompts_are_not_computed_again(engine, tmp_path):
    prompt = "There was a little rabbit who lived in a wood. " * 12
    same = {"max_tokens": 6, "temperature": 0}
    expected = engine.generate(prompt, **same).read()
    n_tokens = engine.save_prompt(prompt, tmp_path / "rabbit.kv")
    assert n_tokens % 64 == 0 and 64 <= n_tokens <= len(engine.tokenize(prompt))
    with sterna.Engine(backend="cpu") as other:
        assert other.restore_prompt(tmp_path / "rabbit.kv") == n_tokens
        text = other.generate(prompt, **same)
        assert text.read() == expected
        assert text.usage["prompt_tokens_details"]["cached_tokens"] >= n_tokens
    for call, said in [
        (lambda: engine.save_prompt("short", tmp_path / "a"), "fewer than 64 tokens"),
        (lambda: engine.save_prompt(prompt, tmp_path / "nothing" / "a"), "could not be written"),
        (lambda: engine.restore_prompt(tmp_path / "missing"), "no such file"),
    ]:
        with pytest.raises(sterna.RequestError, match=said):
            call()
