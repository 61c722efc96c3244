#!/usr/bin/env python3
"""Runs published frameworks on an engine in this process: python frameworks.py [NAME...]

Each asks a question; some stream, call tools or get JSON by a schema. A framework that is not installed is
named, and is no failure unless it is asked for. docs/python-clients.md has the same lines.
"""

import asyncio
import importlib
import json
import sys

import sterna

URL = "http://sterna/v1"
QUESTION = "Tell me a story."
SAME = {"max_tokens": 12, "temperature": 0}


class Place:
    """What frameworks get: an engine, its clients, and the answer that they must get."""

    def __init__(self, engine, server):
        self.engine, self.server = engine, server
        self.http_client = sterna.http_client(engine)
        self.async_http_client = sterna.async_http_client(engine)
        self.expected = engine.chat(QUESTION, **SAME).read()

    def client(self):
        import openai

        return openai.OpenAI(base_url=URL, api_key="-", http_client=self.http_client)

    def async_client(self):
        import openai

        return openai.AsyncOpenAI(base_url=URL, api_key="-", http_client=self.async_http_client)

    def is_expected(self, text):
        assert text == self.expected, (text, self.expected)


def model():
    import pydantic

    class City(pydantic.BaseModel):
        big: bool

    return City


def openai(place):
    same = {"model": "sterna", "messages": [{"role": "user", "content": QUESTION}], **SAME}
    client = place.client()
    place.is_expected(client.chat.completions.create(**same).choices[0].message.content)
    chunks = client.chat.completions.create(stream=True, **same)
    place.is_expected("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    city = model()
    same["max_tokens"] = 200
    parsed = client.chat.completions.parse(response_format=city, **same).choices[0].message.parsed
    assert isinstance(parsed, city)
    answer = client.responses.create(model="sterna", input=QUESTION, temperature=0, max_output_tokens=12)
    place.is_expected(answer.output_text)
    assert len(client.embeddings.create(model="sterna", input=["a", "b"]).data) == 2

    async def asked():
        same["max_tokens"] = 12
        return (await place.async_client().chat.completions.create(**same)).choices[0].message.content

    place.is_expected(asyncio.run(asked()))


def langchain_openai(place):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="sterna", base_url=URL, api_key="-", http_client=place.http_client, **SAME)
    place.is_expected(chat.invoke(QUESTION).content)
    place.is_expected("".join(piece.content for piece in chat.stream(QUESTION)))
    city = model()
    longer = ChatOpenAI(base_url=URL, api_key="-", http_client=place.http_client, temperature=0)
    assert isinstance(longer.with_structured_output(city).invoke(QUESTION), city)


def litellm(place):
    import litellm

    messages = [{"role": "user", "content": QUESTION}]
    answer = litellm.completion(model="openai/sterna", messages=messages, client=place.client(), **SAME)
    place.is_expected(answer.choices[0].message.content)


def llama_index(place):
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model="sterna", api_base=URL, api_key="-", http_client=place.http_client, is_chat_model=True, **SAME
    )
    place.is_expected(llm.complete(QUESTION).text)


def outlines(place):
    import outlines

    city = model()
    llm = outlines.from_openai(place.client(), "sterna")
    assert isinstance(json.loads(llm(QUESTION, city, temperature=0, max_tokens=200))["big"], bool)


def instructor(place):
    import instructor

    city = model()
    no_thoughts = {str(place.engine.tokenize("<", add_special=False)[0]): -100}
    found = instructor.from_openai(place.client()).chat.completions.create(
        model="sterna",
        response_model=city,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=200,
        logit_bias=no_thoughts,
    )
    assert isinstance(found, city)


def pydantic_ai(place):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    llm = OpenAIChatModel("sterna", provider=OpenAIProvider(openai_client=place.async_client()))
    place.is_expected(Agent(llm).run_sync(QUESTION, model_settings=SAME).output)


def dspy(place):
    import dspy

    llm = dspy.LM("openai/sterna", api_base=place.server.base_url, api_key="-", cache=False, **SAME)
    place.is_expected(llm(QUESTION)[0])


FRAMEWORKS = [openai, langchain_openai, litellm, llama_index, outlines, instructor, pydantic_ai, dspy]


def main(names):
    """Runs the named frameworks, or all that are installed."""
    failed = []
    with sterna.Engine(backend="cpu") as engine, engine.serve(port=0) as server:
        place = Place(engine, server)
        for run in FRAMEWORKS:
            name = run.__name__
            if names and name not in names:
                continue
            try:
                importlib.import_module(name)
            except ImportError as err:
                print(f"{name}: not run: {err}")
                failed += [name] if names else []
                continue
            try:
                run(place)
                print(f"{name}: right", flush=True)
            except Exception as err:
                print(f"{name}: {type(err).__name__}: {err}"[:2000], flush=True)
                failed.append(name)
    return f"failed: {', '.join(failed)}" if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
