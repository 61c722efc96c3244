"""Tests agent libraries against a running server: python python_agents.py http://127.0.0.1:8080

scripts/serve/clients starts one with the demo model, which answers a small sum, and calls the tool `add` for
a larger one. Each library asks, streams, runs the tool and requests a value of a schema.
"""

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Literal

# Before litellm is imported: it would fetch a price list, and the agents would send their traces.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}

import agents
import instructor
import litellm
import openai
import pydantic_ai
import smolagents
from agents.mcp import MCPServerStdio
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE = sys.argv[1]
QUESTION, ANSWER = "What is two plus three?", "Two plus three is five."
SUM, TOTAL = "What is 123 plus 456?", "123 plus 456 is 579."
ARGUMENTS = {"a": 123, "b": 456}
# The format of results that the model was trained on.
RESULT = '{"sum": 579}'
CALLS = []
NUMBER = {"type": "number"}
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
}
PLACES = ("here", "there")
OPENAI = {"base_url": f"{BASE}/v1", "api_key": "none"}


class Place(BaseModel):
    where: Literal["here", "there"]


def user(text):
    return [{"role": "user", "content": text}]


def add(a: float, b: float) -> str:
    """Adds two numbers."""
    CALLS.append({"a": a, "b": b})
    return RESULT


def called():
    """Arguments of the calls of `add` since the last time."""
    calls = CALLS[:]
    CALLS.clear()
    return calls


def no_thoughts():
    """Logit bias against thoughts: before a forced tool call, this model would never stop thinking."""
    body = json.dumps({"content": "<"}).encode()
    with urllib.request.urlopen(f"{BASE}/tokenize", data=body) as answer:
        return {str(json.load(answer)["tokens"][0]): -100}


def litellms():
    """litellm's three APIs for self-hosted servers: OpenAI's, Anthropic's and ollama's."""
    litellm.suppress_debug_info = True
    tools = [{"type": "function", "function": ADD}]
    for model, base in [("openai", f"{BASE}/v1"), ("anthropic", BASE), ("ollama_chat", BASE)]:
        ask = {"model": f"{model}/any", "api_base": base, "api_key": "none", "temperature": 0}
        plain = litellm.completion(**ask, messages=user(QUESTION)).choices[0]
        assert (plain.message.content, plain.finish_reason) == (ANSWER, "stop"), (model, plain)
        chunks = list(litellm.completion(**ask, messages=user(QUESTION), stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == ANSWER and chunks[-1].choices[0].finish_reason == "stop", (model, text)

        said = litellm.completion(**ask, messages=user(SUM), tools=tools).choices[0]
        (call,) = said.message.tool_calls
        assert json.loads(call.function.arguments) == ARGUMENTS and said.finish_reason == "tool_calls", model
        result = {"role": "tool", "tool_call_id": call.id, "name": "add", "content": RESULT}
        turns = [*user(SUM), said.message.model_dump(exclude_none=True), result]
        answer = litellm.completion(**ask, messages=turns, tools=tools).choices[0].message.content
        assert answer == TOTAL, (model, answer)
        if model != "anthropic":  # Its schemas require a header that only Anthropic has.
            said = litellm.completion(**ask, messages=user(QUESTION), response_format=Place)
            assert Place.model_validate_json(said.choices[0].message.content).where in PLACES


def pydantic_ais():
    provider = OpenAIProvider(**OPENAI)
    for model in [OpenAIChatModel("any", provider=provider), OpenAIResponsesModel("any", provider=provider)]:
        settings = {"temperature": 0}
        plain = pydantic_ai.Agent(model, model_settings=settings)
        assert plain.run_sync(QUESTION).output == ANSWER

        async def streamed(agent):
            async with agent.run_stream(QUESTION) as result:
                return [text async for text in result.stream_text(delta=True, debounce_by=None)]

        pieces = asyncio.run(streamed(plain))
        assert "".join(pieces) == ANSWER and len(pieces) > 1
        adds = pydantic_ai.Agent(model, model_settings=settings, tools=[add])
        said = adds.run_sync(SUM)
        assert said.output == TOTAL and called() == [ARGUMENTS], said.output
        kind = pydantic_ai.NativeOutput(Place)
        places = pydantic_ai.Agent(model, model_settings=settings, output_type=kind)
        assert places.run_sync(QUESTION).output.where in PLACES


def instructors():
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
        client = instructor.from_openai(openai.OpenAI(**OPENAI), mode=mode)
        ask = {"model": "any", "messages": user(QUESTION), "response_model": Place, "max_retries": 0}
        ask |= {"temperature": 0, "logit_bias": no_thoughts()}
        place = client.chat.completions.create(**ask)
        assert place.where in PLACES
        # Parses incomplete texts as far as possible.
        parts = list(client.chat.completions.create_partial(**ask))
        assert parts[-1].where in PLACES and len(parts) > 1


async def openai_agents():
    client = openai.AsyncOpenAI(**OPENAI)
    settings = agents.ModelSettings(temperature=0)
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        common = {"name": "one", "model": kind(model="any", openai_client=client), "model_settings": settings}
        plain = agents.Agent(**common)
        assert (await agents.Runner.run(plain, QUESTION)).final_output == ANSWER
        stream, pieces = agents.Runner.run_streamed(plain, QUESTION), []
        async for event in stream.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                pieces.append(event.data.delta)
        assert "".join(pieces) == stream.final_output == ANSWER and len(pieces) > 1
        adds = agents.Agent(**common, tools=[agents.function_tool(add)])
        said = await agents.Runner.run(adds, SUM)
        assert said.final_output == TOTAL and called() == [ARGUMENTS], said.final_output
        said = await agents.Runner.run(agents.Agent(**common, output_type=Place), QUESTION)
        assert said.final_output.where in PLACES


async def mcp():
    """The model calls a tool of an MCP server, which openai-agents runs over stdio."""
    client = openai.AsyncOpenAI(**OPENAI)
    settings = agents.ModelSettings(temperature=0)
    server = str(Path(__file__).with_name("python_mcp_server.py"))
    async with MCPServerStdio({"command": sys.executable, "args": [server]}) as sums:
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            common = {"model": kind(model="any", openai_client=client), "model_settings": settings}
            said = await agents.Runner.run(agents.Agent(name="one", **common, mcp_servers=[sums]), SUM)
            results = [item.output for item in said.new_items if item.type == "tool_call_output_item"]
            assert said.final_output == TOTAL and RESULT in str(results[0]).replace("\\", ""), results


def llama_index():
    common = {"model": "any", "api_base": OPENAI["base_url"], "api_key": "none", "temperature": 0}
    common |= {"max_retries": 0, "is_function_calling_model": True}
    responses = OpenAILikeResponses(**common)
    for model in (OpenAILike(**common, is_chat_model=True), responses):
        turn = [ChatMessage(role="user", content=QUESTION)]
        assert model.chat(turn).message.content == ANSWER
        pieces = [part.delta for part in model.stream_chat(turn) if part.delta]
        assert "".join(pieces) == ANSWER and len(pieces) > 1
        result = model.predict_and_call([FunctionTool.from_defaults(add)], SUM)
        assert str(result) == RESULT and called() == [ARGUMENTS], result
    # With this version of openai, the class for chats fails before it requests a schema.
    assert responses.structured_predict(Place, PromptTemplate(QUESTION)).where in PLACES


def smol():
    class Add(smolagents.Tool):
        name, description, output_type = ADD["name"], ADD["description"], "number"
        inputs = {name: {**NUMBER, "description": "a number"} for name in ARGUMENTS}

        def forward(self, a, b):
            return a + b

    common = {"model_id": "any", "api_base": f"{BASE}/v1", "api_key": "none", "temperature": 0}
    model = smolagents.OpenAIModel(**common)
    turn = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    assert model.generate(turn).content == ANSWER
    assert "".join(delta.content or "" for delta in model.generate_stream(turn)) == ANSWER
    turn = [{"role": "user", "content": [{"type": "text", "text": SUM}]}]
    forced = smolagents.OpenAIModel(**common, logit_bias=no_thoughts(), parallel_tool_calls=False)
    (call,) = forced.generate(turn, tools_to_call_from=[Add()]).tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", ARGUMENTS)
    schema = {"name": "place", "schema": Place.model_json_schema()}
    said = model.generate(turn, response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(said.content)["where"] in PLACES


asyncio.run(openai_agents())
asyncio.run(mcp())
for check in [litellms, pydantic_ais, instructors, llama_index, smol]:
    check()
print("litellm, pydantic-ai, instructor, openai-agents, an MCP server, llama-index and smolagents", end=" ")
print("agree with the server")
