"""Tests of clients of OpenAI's API, in the process and at a port."""

import asyncio
import json
import urllib.request

import pytest
from test_many import idle

import sterna

QUESTION = [{"role": "user", "content": "Tell me a story."}]
SAME = {"max_tokens": 6, "temperature": 0, "seed": 1}


def test_requests_need_no_socket(engine):
    httpx = pytest.importorskip("httpx")
    expected = engine.chat(QUESTION, **SAME).read()
    body = {"messages": QUESTION, **SAME}
    with sterna.http_client(engine) as client:
        whole = client.post("/chat/completions", json=body)
        assert whole.json()["choices"][0]["message"]["content"] == expected
        assert whole.headers["content-type"] == "application/json"
        with client.stream("POST", "/chat/completions", json=body | {"stream": True}) as streamed:
            lines = [line for line in streamed.iter_lines() if line]
        assert lines[-1] == "data: [DONE]" and len(lines) > 6
        refused = client.post("/chat/completions", json=body | {"top_p": 3})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "top_p"
        assert client.get("/nothing").status_code == 404
        # A stream that is left ends its text.
        endless = body | {"stream": True, "max_tokens": 100000, "ignore_eos": True}
        with client.stream("POST", "/chat/completions", json=endless) as streamed:
            next(streamed.iter_lines())
    assert idle(engine)

    async def asynchronously():
        async with sterna.async_http_client(engine) as client:
            whole = await client.post("/chat/completions", json=body)
            async with client.stream("POST", "/chat/completions", json=body | {"stream": True}) as streamed:
                lines = [line async for line in streamed.aiter_lines() if line]
            several = await asyncio.gather(*(client.post("/chat/completions", json=body) for _ in range(5)))
        return whole.json()["choices"][0]["message"]["content"], lines[-1], {of.status_code for of in several}

    assert asyncio.run(asynchronously()) == (expected, "data: [DONE]", {200})
    assert isinstance(client, httpx.Client)


def test_the_client_of_openai(engine):
    openai = pytest.importorskip("openai")
    expected = engine.chat(QUESTION, **SAME).read()
    same = {"model": "any", "messages": QUESTION, **SAME}
    client = openai.OpenAI(base_url="http://sterna/v1", api_key="-", http_client=sterna.http_client(engine))
    assert client.chat.completions.create(**same).choices[0].message.content == expected
    chunks = client.chat.completions.create(stream=True, **same)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.chat.completions.create(**same, top_p=3)

    async def asynchronously():
        http_client = sterna.async_http_client(engine)
        client = openai.AsyncOpenAI(base_url="http://sterna/v1", api_key="-", http_client=http_client)
        return (await client.chat.completions.create(**same)).choices[0].message.content

    assert asyncio.run(asynchronously()) == expected
    with engine.serve(port=0) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="-")
        assert client.chat.completions.create(**same).choices[0].message.content == expected


def test_a_listener_serves_the_same_model(engine):
    body = json.dumps({"messages": QUESTION, **SAME}).encode()

    def asked(url):
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    with engine.serve(port=0) as server, engine.serve(port=0) as other:
        assert server.port != other.port and str(server.port) in repr(server)
        assert asked(server.url) == asked(other.url) == engine.chat(QUESTION, **SAME).read()
        with pytest.raises(OSError):
            engine.serve(port=server.port)
    with pytest.raises(OSError):
        asked(server.url)
    assert engine.chat(QUESTION, **SAME).read()


# What a test of a program that asks a server of OpenAI's API looks like.
@pytest.fixture(scope="module")
def openai_server():
    with sterna.Engine(backend="cpu") as engine, engine.serve(port=0) as server:
        yield server


def test_a_fixture_is_an_offline_server(openai_server):
    with urllib.request.urlopen(f"{openai_server.base_url}/models", timeout=20) as answer:
        assert json.load(answer)["data"][0]["id"] == "sterna-world"
