"""Tests of the plugin, installed next to `llm`."""

import json

import llm
import llm.cli
import pytest
import sterna
from click.testing import CliRunner


@pytest.fixture(autouse=True)
def user_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))


def said(*args):
    done = CliRunner().invoke(llm.cli.cli, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_prompt_is_answered():
    model = llm.get_model("sterna-world")
    response = model.prompt("Tell me a story.", max_tokens=12, temperature=0)
    pieces = list(response)
    with sterna.Engine() as engine:
        expected = engine.chat("Tell me a story.", max_tokens=12, temperature=0)
        assert "".join(pieces) == expected.read() and len(pieces) > 5
        usage = response.usage()
        assert (usage.input, usage.output) == (expected.usage["prompt_tokens"], 12)


def test_a_conversation_goes_on():
    conversation = llm.get_model("sterna-world").conversation()
    first = conversation.prompt("Tell me a story.", max_tokens=8, temperature=0).text()
    second = conversation.prompt("And then?", max_tokens=8, temperature=0, system="Be short.").text()
    messages = [
        {"role": "user", "content": "Tell me a story."},
        {"role": "assistant", "content": first},
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "And then?"},
    ]
    with sterna.Engine() as engine:
        assert engine.chat(messages, max_tokens=8, temperature=0).read() == second


def test_a_schema_is_followed():
    schema = {"type": "object", "properties": {"big": {"type": "boolean"}}, "required": ["big"]}
    response = llm.get_model("sterna-world").prompt("A city.", schema=schema, temperature=0)
    assert isinstance(json.loads(response.text())["big"], bool)


def test_texts_are_embedded():
    texts = ["A rabbit.", "A house."]
    vectors = list(llm.get_embedding_model("sterna-world").embed_multi(texts))
    with sterna.Engine() as engine:
        assert vectors == [pytest.approx(list(vector), abs=1e-4) for vector in engine.embed(texts)]


def test_models_have_names(tmp_path):
    said("sterna", "add", "mine", "user/repo:Q4_0", "--n-ctx", "512")
    assert said("sterna", "list") == "sterna-world: built in\nmine: user/repo:Q4_0\n"
    assert "mine" in said("models", "list")
    said("sterna", "remove", "mine")
    assert said("sterna", "list") == "sterna-world: built in\n"
