"""What published clients make of a running server: python serve_clients.py http://127.0.0.1:8080

scripts/serve-clients starts one with the demo model. The clients check types and the order of events
themselves; here their results are compared with each other.
"""

import asyncio
import sys

import anthropic
import ollama
import openai
from langchain_openai import ChatOpenAI

BASE = sys.argv[1]
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"num_predict": 8, "temperature": 0}


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

    completions = client.completions.create(model="any", prompt=["a", "b"], max_tokens=4, logprobs=2)
    assert [choice.index for choice in completions.choices] == [0, 1]
    name = client.models.list().data[0].id
    assert client.models.retrieve(name).id == name

    for bad in [{"messages": []}, {"temperature": 1e9}, {"n": 10**9}, {"response_format": {"type": "none"}}]:
        assert refused(openai.BadRequestError, create, **{**ask, **bad}).param.split(".")[0] in bad
    error = refused(openai.InternalServerError, client.embeddings.create, model="any", input="a")
    assert error.status_code == 501


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
    ask = {"model": "any", "input": "Once upon a time", "max_output_tokens": 8, "temperature": 0}
    plain = client.responses.create(**ask)
    assert plain.status == "incomplete" and plain.output_text
    with client.responses.stream(**ask) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.output_text
    assert events[-1].response.output[0].content[0].text == plain.output_text
    refused(openai.BadRequestError, client.responses.create, **ask, previous_response_id="resp_1")


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


def ollamas():
    client = ollama.Client(host=BASE)
    plain = client.chat(model="any", messages=MESSAGES, options=GREEDY)
    pieces = client.chat(model="any", messages=MESSAGES, options=GREEDY, stream=True)
    assert "".join(piece.message.content for piece in pieces) == plain.message.content
    assert plain.eval_count == 8
    assert client.generate(model="any", prompt="Once upon a time", options=GREEDY).response
    name = client.list().models[0].model
    assert client.show(name).capabilities == ["completion"] and client.ps().models[0].model == name
    assert refused(ollama.ResponseError, client.embed, model="any", input="a").status_code == 501


def langchain():
    ask = {"model": "any", "base_url": f"{BASE}/v1", "api_key": "none", "temperature": 0, "max_retries": 0}
    model = ChatOpenAI(**ask, max_tokens=8)
    plain = model.invoke("Once upon a time")
    assert plain.usage_metadata["output_tokens"] == 8
    assert "".join(chunk.content for chunk in model.stream("Once upon a time")) == plain.content
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
