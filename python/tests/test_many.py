"""Tests of many texts in one call."""

import asyncio
import threading
import time

import pytest

import sterna

GREEDY = {"temperature": 0, "seed": 1}
PROMPTS = [f"Once there was a {name}" for name in "cat dog hen fox owl ant bee elk emu yak ape cow".split()]


def idle(engine):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not any(slot["is_processing"] for slot in engine._whole(engine._request("/slots"))):
            return True
        time.sleep(0.02)
    return False


def test_texts_are_in_the_order_of_their_prompts(engine, capsys):
    alone = [engine.generate(prompt, max_tokens=6, **GREEDY).read() for prompt in PROMPTS]
    # Of different lengths, so that they do not end in order.
    for progress in (False, True):
        texts = engine.generate_many(PROMPTS, max_tokens=6, progress=progress, **GREEDY)
        assert [text.text for text in texts] == alone and all(
            text.finish_reason == "length" for text in texts
        )
    assert "texts" in capsys.readouterr().err
    shown = asyncio.run(engine.agenerate_many(PROMPTS, max_tokens=6, progress="stories", **GREEDY))
    assert [text.text for text in shown] == alone and "stories" in capsys.readouterr().err
    assert engine.generate_many([], max_tokens=6) == []


def test_conversations_are_answered_in_order(engine):
    alone = [engine.chat(prompt, max_tokens=6, **GREEDY).read() for prompt in PROMPTS[:4]]
    conversations = [PROMPTS[0], *([{"role": "user", "content": prompt}] for prompt in PROMPTS[1:4])]
    assert [answer.text for answer in engine.chat_many(conversations, max_tokens=6, **GREEDY)] == alone
    answers = asyncio.run(engine.achat_many(conversations, max_tokens=6, **GREEDY))
    assert [answer.message["content"] for answer in answers] == alone


def test_several_texts_of_each_prompt(engine):
    texts = engine.generate_many(PROMPTS[:2], n=3, max_tokens=8, temperature=2, seed=5)
    single = [
        engine.generate(prompt, max_tokens=8, temperature=2, seed=5 + at).read()
        for prompt in PROMPTS[:2]
        for at in range(3)
    ]
    assert [text.text for text in texts] == single and len(set(single)) == 6
    with pytest.raises(ValueError, match="n: want at least 1"):
        engine.generate_many(PROMPTS, n=0)
    with pytest.raises(TypeError, match="prompts: want a list"):
        engine.generate_many("Once")


def test_an_error_cancels_all(engine):
    same = {"max_tokens": 1500, "ignore_eos": True}
    for progress in (False, True):
        with pytest.raises(sterna.RequestError, match="too long"):
            engine.generate_many(["Once " * 5000, *PROMPTS], progress=progress, **same)
        assert idle(engine)
    with pytest.raises(sterna.RequestError, match="too long"):
        asyncio.run(engine.agenerate_many(["Once " * 5000, *PROMPTS], **same))
    assert idle(engine)
    with pytest.raises(TypeError, match="prompt: want a text"):
        engine.generate_many([*PROMPTS, 7], **same)
    assert idle(engine)


def test_a_cancelled_task_cancels_all(engine):
    async def cancelled():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.agenerate_many(PROMPTS, max_tokens=1500, ignore_eos=True), 0.1)

    asyncio.run(cancelled())
    assert idle(engine)


def test_sixteen_texts_run_at_a_time_by_default():
    with sterna.Engine(backend="cpu") as engine:
        assert engine.properties["total_slots"] == 16
        texts = [engine.generate(prompt, max_tokens=400, ignore_eos=True) for prompt in PROMPTS]
        busy, until = 0, time.monotonic() + 10
        while busy < len(PROMPTS) and time.monotonic() < until:
            busy = sum(slot["is_processing"] for slot in engine._whole(engine._request("/slots")))
        assert busy == len(PROMPTS)
        for text in texts:
            text.cancel()


def test_threads_ask_for_many(engine):
    alone = [engine.generate(prompt, max_tokens=6, **GREEDY).read() for prompt in PROMPTS]
    results = {}

    def ask(number):
        results[number] = [str(text) for text in engine.generate_many(PROMPTS, max_tokens=6, **GREEDY)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == dict.fromkeys(range(3), alone)
