"""Tests published clients for embeddings and reranking: python python_embeddings.py EMBEDS RANKS

The arguments are the addresses of two servers, which scripts/serve/clients starts with a small model of
random weights. The clients check types themselves; this compares their vectors and rankings with each other.
"""

import json
import math
import os
import sys
import urllib.request

# Before litellm is imported, which would fetch a price list.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import cohere
import litellm
import ollama
import openai
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

EMBEDS, RANKS = sys.argv[1:]
OPENAI = openai.OpenAI(base_url=f"{EMBEDS}/v1", api_key="none", max_retries=0)
TEXTS = ["a small owl", "über däs Ög 你好", "two\nlines", "a tall tree " * 8]
QUERY, DOCUMENTS = "where do owls live", ["in trees", "tax law", "owls live in holes"]


def check(got, want=None):
    """Compares vectors; texts computed in other batches round differently."""
    want = VECTORS if want is None else want
    assert len(got) == len(want) and all(len(a) == len(b) for a, b in zip(got, want)), (len(got), len(want))
    largest = max(abs(x - y) for a, b in zip(got, want) for x, y in zip(a, b))
    assert largest < 1e-5, largest


def refused(error, call, **arguments):
    try:
        call(**arguments)
    except error as err:
        return err
    raise AssertionError(f"{error.__name__} was expected of {arguments}")


def scaled(vector):
    length = math.hypot(*vector)
    return [x / length for x in vector]


def vectors(**asked):
    """Creates embeddings; the client requests base64 unless a call sets `encoding_format`."""
    return [entry.embedding for entry in OPENAI.embeddings.create(model="any", **asked).data]


def openais():
    check(vectors(input=TEXTS, encoding_format="float"))
    check([scaled(vector) for vector in VECTORS])
    check(vectors(input=TEXTS[1]), VECTORS[1:2])
    check(vectors(input=TEXTS, dimensions=8), [scaled(vector[:8]) for vector in VECTORS])
    body = json.dumps({"content": TEXTS[0], "add_special": True}).encode()
    with urllib.request.urlopen(f"{EMBEDS}/tokenize", data=body) as answer:
        tokens = json.load(answer)["tokens"]
    check(vectors(input=tokens), VECTORS[:1])
    check(vectors(input=[tokens, tokens]), [VECTORS[0], VECTORS[0]])
    usage = OPENAI.embeddings.create(model="any", input=[tokens, tokens]).usage
    assert usage.prompt_tokens == usage.total_tokens == 2 * len(tokens)
    for param, bad in [("input", ""), ("input", []), ("dimensions", 10**6)]:
        assert refused(openai.BadRequestError, vectors, **{"input": "a", param: bad}).param == param
    long = refused(openai.BadRequestError, vectors, input="owl " * 1000)
    assert (long.code, long.param) == ("context_length_exceeded", "input")


def ollamas():
    client = ollama.Client(host=EMBEDS)
    plain = client.embed(model="any", input=TEXTS, keep_alive="5m", options={"num_ctx": 256})
    check(plain.embeddings)
    assert plain.prompt_eval_count > len(TEXTS) and plain.total_duration > 0
    check(client.embed(model="any", input=TEXTS[2]).embeddings, VECTORS[2:3])
    shorter = client.embed(model="any", input=TEXTS, dimensions=8).embeddings
    check(shorter, [scaled(vector[:8]) for vector in VECTORS])
    check([scaled(client.embeddings(model="any", prompt=text).embedding) for text in TEXTS])
    assert client.embed(model="any", input="owl " * 1000).prompt_eval_count == 256
    long = refused(ollama.ResponseError, client.embed, model="any", input="owl " * 1000, truncate=False)
    assert long.status_code == 400
    assert client.show(client.list().models[0].model).capabilities == ["embedding"]


def langchains():
    """`check_embedding_ctx_length` would send OpenAI's tokens, which are not the model's."""
    ask = {"model": "any", "base_url": f"{EMBEDS}/v1", "api_key": "none", "check_embedding_ctx_length": False}
    name = ollama.Client(host=EMBEDS).list().models[0].model
    named = OllamaEmbeddings(model=name, base_url=EMBEDS, validate_model_on_init=True)
    for model in [OpenAIEmbeddings(**ask), OpenAIEmbeddings(**ask, chunk_size=1), named]:
        check(model.embed_documents(TEXTS))
        check([model.embed_query(TEXTS[0])], VECTORS[:1])
    check(OpenAIEmbeddings(**ask, dimensions=8).embed_documents(TEXTS), vectors(input=TEXTS, dimensions=8))


def llama_index():
    """It sends spaces instead of newlines."""
    ask = {"model_name": "any", "api_base": f"{EMBEDS}/v1", "api_key": "none", "max_retries": 0}
    texts, want = TEXTS[:2] + TEXTS[3:], VECTORS[:2] + VECTORS[3:]
    model = OpenAILikeEmbedding(**ask)
    check(model.get_text_embedding_batch(texts), want)
    check([model.get_query_embedding(texts[0])], want[:1])
    short = OpenAILikeEmbedding(**ask, dimensions=8).get_text_embedding_batch(texts)
    check(short, vectors(input=texts, dimensions=8))


def litellm_vectors():
    """litellm's providers for self-hosted servers; `huggingface` uses TEI's API."""
    ways = {"openai": "/v1", "hosted_vllm": "/v1", "infinity": "/v1", "jina_ai": "/v1/embeddings"}
    for name, path in {**ways, "ollama": "", "huggingface": "/embed"}.items():
        ask = {"model": f"{name}/any", "api_base": f"{EMBEDS}{path}", "api_key": "none"}
        if name == "huggingface":
            ask["input_type"] = "feature-extraction"  # It would ask the hub for it otherwise.
        check([entry["embedding"] for entry in litellm.embedding(**ask, input=TEXTS).data])
        check([entry["embedding"] for entry in litellm.embedding(**ask, input=TEXTS[:1]).data], VECTORS[:1])


def rankings():
    """Rankings; TEI's scores are probabilities."""
    ask = {"query": QUERY, "documents": DOCUMENTS}
    client = cohere.ClientV2(api_key="none", base_url=RANKS)
    results = client.rerank(model="any", **ask).results
    order, scores = zip(*((result.index, result.relevance_score) for result in results))
    assert sorted(order) == [0, 1, 2] and list(scores) == sorted(scores, reverse=True)
    assert [result.index for result in client.rerank(model="any", **ask, top_n=2).results] == list(order[:2])
    texts = [{"text": text} for text in DOCUMENTS]
    first = cohere.Client(api_key="none", base_url=RANKS)
    best = first.rerank(model="any", query=QUERY, documents=texts, top_n=1, return_documents=True).results
    assert (best[0].index, best[0].document.text) == (order[0], DOCUMENTS[order[0]])
    refused(cohere.BadRequestError, client.rerank, model="any", query="", documents=DOCUMENTS)

    ways = {"cohere": "", "jina_ai": "/v1/rerank", "hosted_vllm": "/v1", "huggingface": ""}
    for name, path in ways.items():
        to = {"model": f"{name}/any", "api_base": f"{RANKS}{path}", "api_key": "none"}
        results = litellm.rerank(**to, **ask).results
        assert [result["index"] for result in results] == list(order), (name, results)
        assert [result["document"]["text"] for result in results] == [DOCUMENTS[at] for at in order], name
        want = [1 / (1 + math.exp(-score)) for score in scores] if name == "huggingface" else scores
        check([[result["relevance_score"] for result in results]], [want])
        results = litellm.rerank(**to, **ask, top_n=2, return_documents=False).results
        assert [result["index"] for result in results] == list(order[:2]), (name, results)
    embeds = openai.OpenAI(base_url=f"{RANKS}/v1", api_key="none", max_retries=0).embeddings
    assert "/v1/rerank" in refused(openai.BadRequestError, embeds.create, model="any", input="a").message


litellm.suppress_debug_info = True
VECTORS = vectors(input=TEXTS)
for part in [openais, ollamas, langchains, llama_index, litellm_vectors, rankings]:
    part()
print("openai, ollama, LangChain, llama-index, litellm, cohere agree with the server's embeddings and scores")
