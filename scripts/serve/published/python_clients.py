"""Tests published clients against a running server: python python_clients.py http://127.0.0.1:8080

scripts/serve/clients starts one with the demo model. The clients check types and the order of events
themselves; this compares their results with each other.
"""

import asyncio
import json
import sys
import urllib.request
from typing import Literal

import anthropic
import ollama
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

BASE = sys.argv[1]
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"num_predict": 8, "temperature": 0}


SCHEMA = {
    "type": "object",
    "properties": {"where": {"enum": ["here", "there"]}},
    "required": ["where"],
    "additionalProperties": False,
}
LOOK = {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}


class Place(BaseModel):
    where: Literal["here", "there"]


def no_thoughts():
    """Logit bias against thoughts: before a forced tool call, this model would never stop thinking."""
    body = json.dumps({"content": "<"}).encode()
    with urllib.request.urlopen(f"{BASE}/tokenize", data=body) as answer:
        return {"logit_bias": {str(json.load(answer)["tokens"][0]): -100}}


def is_place(arguments):
    return arguments in ({"where": "here"}, {"where": "there"})


def refused(error, call, **arguments):
    try:
        call(**arguments)
    except error as err:
        return err
    raise AssertionError(f"{error.__name__} was expected of {arguments}")


def chat():
    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    create = client.chat.completions.create
    ask = {"model": "any", "messages": MESSAGES, "max_tokens": 8, "seed": 1}
    plain = create(**ask, n=2, logprobs=True, top_logprobs=3)
    assert len(plain.choices) == 2 and plain.usage.completion_tokens == 16
    assert len(plain.choices[0].logprobs.content[0].top_logprobs) == 3
    pieces, usage = [], None
    for chunk in create(**ask, stream=True, stream_options={"include_usage": True}):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage
    assert "".join(pieces) == plain.choices[0].message.content and usage.completion_tokens == 8
    with client.chat.completions.stream(**ask) as stream:
        kinds = [event.type for event in stream]
    assert kinds.count("content.delta") > 1 and "content.done" in kinds

    tools = [{"type": "function", "function": LOOK}]
    ask = {"model": "any", "messages": MESSAGES, "tools": tools, "tool_choice": "required", **no_thoughts()}
    ask |= {"seed": 1, "parallel_tool_calls": False}
    plain = create(**ask)
    (call,) = plain.choices[0].message.tool_calls
    assert is_place(json.loads(call.function.arguments)) and plain.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(**ask) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        (last,) = stream.get_final_completion().choices[0].message.tool_calls
    assert done[0].parsed_arguments == last.function.parsed_arguments == json.loads(call.function.arguments)
    parsed = client.chat.completions.parse(model="any", messages=MESSAGES, response_format=Place)
    assert parsed.choices[0].message.parsed.where in ("here", "there")

    completions = client.completions.create(model="any", prompt=["a", "b"], max_tokens=4, logprobs=2)
    assert [choice.index for choice in completions.choices] == [0, 1]
    name = client.models.list().data[0].id
    assert client.models.retrieve(name).id == name

    for bad in [{"messages": []}, {"temperature": 1e9}, {"n": 10**9}, {"response_format": {"type": "none"}}]:
        assert refused(openai.BadRequestError, create, **{**ask, **bad}).param.split(".")[0] in bad


async def chats_at_once():
    client = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="none")

    async def one(seed):
        text = ""
        create = client.chat.completions.create
        asked = {"messages": MESSAGES, "max_tokens": 12, "seed": seed, "stream": True}
        async for chunk in await create(model="any", **asked):
            text += chunk.choices[0].delta.content or ""
        return text

    texts = await asyncio.gather(*[one(seed % 3) for seed in range(12)])
    assert all(texts[at] == texts[at % 3] for at in range(12)), texts


def responses():
    client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
    ask = {"model": "any", "input": "Tell me a story.", "max_output_tokens": 8, "temperature": 0}
    plain = client.responses.create(**ask)
    assert plain.status == "incomplete" and plain.output_text
    with client.responses.stream(**ask) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.output_text
    assert events[-1].response.output[0].content[0].text == plain.output_text
    refused(openai.BadRequestError, client.responses.create, **ask, previous_response_id="resp_1")

    choice = {"type": "function", "name": "look"}
    ask = {"model": "any", "input": MESSAGES, "tools": [{"type": "function", **LOOK}], "tool_choice": choice}
    ask |= {"extra_body": {**no_thoughts(), "seed": 1}, "parallel_tool_calls": False}
    plain = client.responses.create(**ask)
    (call,) = plain.output
    assert plain.status == "completed" and is_place(json.loads(call.arguments))
    with client.responses.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    assert last.output[0].parsed_arguments == json.loads(call.arguments)
    said = {"type": "function_call_output", "call_id": call.call_id, "output": "a wood"}
    turn = [*MESSAGES, call.model_dump(exclude_none=True), said]
    ask |= {"input": turn, "tool_choice": "none", "max_output_tokens": 4}
    assert client.responses.create(**ask).output_text
    parsed = client.responses.parse(model="any", input=MESSAGES, text_format=Place)
    assert parsed.output_parsed.where in ("here", "there")
    hosted = {"model": "any", "input": MESSAGES, "tools": [{"type": "web_search"}], "max_output_tokens": 4}
    assert client.responses.create(**hosted).output_text
    choice = {"type": "web_search_preview"}
    wrong = refused(openai.BadRequestError, client.responses.create, **hosted, tool_choice=choice)
    assert wrong.param == "tool_choice"
    named = {"type": "namespace", "name": "crm", "description": "Places.", "tools": ask["tools"]}
    choice = {"type": "function", "name": "crm__look"}
    ask |= {"input": MESSAGES, "tools": [named], "tool_choice": choice, "max_output_tokens": 100}
    (call,) = client.responses.create(**ask).output
    assert (call.namespace, call.name) == ("crm", "look") and is_place(json.loads(call.arguments))


def messages():
    client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
    ask = {"model": "any", "max_tokens": 8, "messages": MESSAGES, "extra_body": {"temperature": 0}}
    plain = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert last.content[0].text == text == plain.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 8)
    assert client.messages.count_tokens(model="any", messages=MESSAGES).input_tokens > 0
    refused(anthropic.BadRequestError, client.messages.create, model="any", max_tokens=8, messages=[])

    tool = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
    choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    ask = {"model": "any", "max_tokens": 100, "messages": MESSAGES, "tools": [tool]}
    forced = {**ask, "tool_choice": choice, "extra_body": {**no_thoughts(), "seed": 1}}
    plain = client.messages.create(**forced)
    (call,) = plain.content
    assert plain.stop_reason == "tool_use" and is_place(call.input)
    with client.messages.stream(**forced) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
    assert "input_json" in kinds and last.content[0].input == call.input and last.stop_reason == "tool_use"
    said = {"type": "tool_result", "tool_use_id": call.id, "content": "no wood", "is_error": True}
    turns = [{"role": "assistant", "content": plain.content}, {"role": "user", "content": [said]}]
    ask["messages"] = [*MESSAGES, *turns]
    counted = client.messages.count_tokens(model="any", messages=ask["messages"], tools=[tool]).input_tokens
    after = client.messages.create(**{**ask, "max_tokens": 4})
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens == counted
    hosted = [{"type": "web_search_20250305", "name": "web_search"}]
    refused(anthropic.BadRequestError, client.messages.create, **{**ask, "tools": hosted})


def ollamas():
    client = ollama.Client(host=BASE)
    plain = client.chat(model="any", messages=MESSAGES, options=GREEDY)
    pieces = client.chat(model="any", messages=MESSAGES, options=GREEDY, stream=True)
    assert "".join(piece.message.content for piece in pieces) == plain.message.content
    assert plain.eval_count == 8
    assert client.generate(model="any", prompt="Once upon a time", options=GREEDY).response
    said = client.chat(model="any", messages=MESSAGES, format=SCHEMA, options={"num_predict": 100})
    assert is_place(json.loads(said.message.content))
    call = {"function": {"name": "look", "arguments": {"where": "here"}}}
    turn = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    turn += [{"role": "tool", "tool_name": "look", "content": "a wood"}]
    ask = {"model": "any", "messages": turn, "tools": [{"type": "function", "function": LOOK}]}
    ask["options"] = {"num_predict": 100, "temperature": 0}
    plain, pieces = client.chat(**ask).message, [piece.message for piece in client.chat(**ask, stream=True)]
    assert "".join(piece.content for piece in pieces) == plain.content
    calls = [call.function for piece in pieces for call in piece.tool_calls or []]
    assert calls == [call.function for call in plain.tool_calls or []]
    assert all(is_place(call.arguments) for call in calls)
    name = client.list().models[0].model
    assert "completion" in client.show(name).capabilities and client.ps().models[0].model == name


def langchain():
    ask = {"model": "any", "base_url": f"{BASE}/v1", "api_key": "none", "temperature": 0, "max_retries": 0}
    model = ChatOpenAI(**ask, max_tokens=8)
    plain = model.invoke("Tell me a story.")
    assert plain.usage_metadata["output_tokens"] == 8
    assert "".join(chunk.content for chunk in model.stream("Tell me a story.")) == plain.content
    schema = {
        "title": "Answer",
        "type": "object",
        "properties": {"good": {"type": "boolean"}},
        "required": ["good"],
        "additionalProperties": False,
    }
    structured = ChatOpenAI(**ask, max_tokens=100).with_structured_output(schema, method="json_schema")
    assert isinstance(structured.invoke("Is this good?")["good"], bool)


for check in [chat, lambda: asyncio.run(chats_at_once()), responses, messages, ollamas, langchain]:
    check()
versions = f"openai {openai.__version__}, anthropic {anthropic.__version__}"
print(f"{versions}, ollama and LangChain agree with the server")
