"""Tests of the installed package, with the demo model, compared to the command line of the same wheel."""

import asyncio
import http.server
import inspect
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time

import pytest
from conftest import posix, processes

import sterna

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "seed": 1}
PLACE = {
    "type": "object",
    "properties": {"where": {"enum": ["here", "there"]}},
    "required": ["where"],
    "additionalProperties": False,
}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PLACE}}
PROGRAM = shutil.which("sterna", path=sysconfig.get_path("scripts")) or "sterna"
STATM = pathlib.Path("/proc/self/statm")


def command_line(*args):
    done = subprocess.run([PROGRAM, *args, "--backend", "cpu"], capture_output=True, text=True, check=True)
    return done.stdout


@processes
def test_text_equals_that_of_the_command_line(engine):
    said = command_line("run", "-p", PROMPT, "-n", "40", "--temp", "0")
    generation = engine.generate(PROMPT, max_tokens=40, **GREEDY)
    pieces = list(generation)
    assert len(pieces) > 10 and "".join(pieces) == generation.text == said.rstrip("\n")
    assert generation.finish_reason == "length" and generation.usage["completion_tokens"] == 40
    assert generation.timings["predicted_per_second"] > 0
    assert engine.generate(engine.tokenize(PROMPT), max_tokens=40, **GREEDY).read() == generation.text


@processes
def test_command_line_has_the_exit_codes_of_the_program():
    assert command_line("--version").strip() == f"sterna {sterna.__version__}"
    as_module = subprocess.run([sys.executable, "-m", "sterna", "--version"], capture_output=True, text=True)
    assert as_module.stdout.strip() == f"sterna {sterna.__version__}"
    for args, code in [(["--wrong"], 2), (["run", "-m", "missing.gguf", "-p", "x"], 1)]:
        assert subprocess.run([PROGRAM, *args], capture_output=True).returncode == code


@processes
@posix
def test_ctrl_c_ends_commands_without_a_signal_handler():
    waits = subprocess.Popen([PROGRAM, "tokenize", "--stdin"], stdin=subprocess.PIPE)
    time.sleep(1)
    waits.send_signal(signal.SIGINT)
    assert waits.wait(10) == -signal.SIGINT
    waits.stdin.close()


def test_events_have_the_requested_fields(engine):
    events = list(engine.generate(PROMPT, max_tokens=5, logprobs=2, **GREEDY).events())
    scored = [event["choices"][0]["logprobs"] for event in events if event["choices"]]
    assert sum(len(logprobs["tokens"]) for logprobs in scored if logprobs) == 5
    stopped = engine.generate(PROMPT, max_tokens=40, stop=["."], **GREEDY)
    assert "." not in stopped.read() and stopped.finish_reason == "stop"


def test_chat_answers_calls_tools_and_follows_schemas(engine):
    question = [{"role": "user", "content": "Tell me a story."}]
    answer = engine.chat(question, max_tokens=30, **GREEDY)
    assert answer.read() and answer.message == {"role": "assistant", "content": answer.text}
    assert engine.chat("Tell me a story.", max_tokens=30, **GREEDY).read() == answer.text
    assert "Tell me a story." in engine.apply_template(question)
    # Before a required call a model may think, and this model would not stop thinking.
    no_thoughts = {"logit_bias": {str(engine.tokenize("<", add_special=False)[0]): -100}}
    asked = {"tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    calling = engine.chat(question, max_tokens=200, **asked, **no_thoughts)
    calling.read()
    (call,) = calling.message["tool_calls"]
    assert call["function"]["name"] == "look" and call["id"] and calling.finish_reason == "tool_calls"
    assert json.loads(call["function"]["arguments"])["where"] in ("here", "there")
    result = {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}
    continued = engine.chat([*question, calling.message, result], max_tokens=5)
    assert continued.read() == continued.text and continued.usage["completion_tokens"] > 0

    class Place:
        @staticmethod
        def model_json_schema():
            return PLACE

    for schema in (PLACE, Place):
        assert json.loads(engine.chat(question, schema=schema).read())["where"] in ("here", "there")
        assert json.loads(engine.generate(PROMPT, schema=schema).read())["where"] in ("here", "there")


@processes
def test_tokens_and_vectors_equal_those_of_the_command_line(engine):
    said = subprocess.run([PROGRAM, "tokenize", "-p", PROMPT, "--ids"], capture_output=True, check=True)
    assert engine.tokenize(PROMPT) == json.loads(said.stdout)
    assert engine.detokenize(engine.tokenize(PROMPT, add_special=False)) == PROMPT
    texts = ["A rabbit.", "A house."]
    vectors = engine.embed(texts)
    said = json.loads(command_line("embed", "-p", texts[0], "-p", texts[1], "--output-format", "array"))

    def equals(vectors, others):
        return [list(vector) for vector in vectors] == [pytest.approx(list(of), abs=1e-4) for of in others]

    assert equals(vectors, said) and list(vectors[0]) != list(vectors[1])
    assert equals(engine.embed(texts[0]), vectors[:1])
    assert equals(asyncio.run(engine.aembed(texts)), vectors)


def long_prompt(number):
    """A prompt that is not in the cache, and whose single step takes a while."""
    return f"{number}: " + PROMPT * 200


def test_tasks_share_the_engine(engine):
    prompts = [f"{PROMPT} there was a {animal}" for animal in ("cat", "dog", "rabbit", "bird", "fox", "hen")]
    alone = [engine.generate(prompt, max_tokens=24, **GREEDY).read() for prompt in prompts]

    async def together():
        generations = [engine.generate(prompt, max_tokens=24, **GREEDY) for prompt in prompts]
        texts = await asyncio.gather(*generations)
        pieces = [piece async for piece in engine.generate(prompts[0], max_tokens=24, **GREEDY)]
        return texts, pieces

    async def turns_of_the_loop():
        reading, turns = asyncio.create_task(engine.generate(long_prompt(1), max_tokens=1)._aread()), 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    async def of_two_tasks():
        generation = engine.generate(prompts[0], max_tokens=24, **GREEDY)
        return await asyncio.gather(generation._aread(), generation._aread())

    assert asyncio.run(of_two_tasks()) == [alone[0], alone[0]]
    texts, pieces = asyncio.run(together())
    assert list(texts) == alone and "".join(pieces) == alone[0] and len(pieces) > 5
    assert asyncio.run(turns_of_the_loop()) > 5


def test_more_requests_than_slots_wait(engine):
    async def many():
        return await asyncio.gather(*(engine.generate(PROMPT, max_tokens=2, **GREEDY) for _ in range(200)))

    assert len(set(asyncio.run(many()))) == 1


def test_threads_share_the_engine_without_the_gil(engine):
    prompts = [long_prompt(2), long_prompt(3)]
    texts = {}

    def ask(number):
        texts[number] = engine.generate(prompts[number], max_tokens=1, **GREEDY).read()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    turns = 0
    while any(thread.is_alive() for thread in threads):
        turns += 1
        time.sleep(0)
    alone = [engine.generate(prompt, max_tokens=1, **GREEDY).read() for prompt in prompts]
    assert texts == dict(enumerate(alone)) and turns > 5


def idle(engine):
    """True if all sequences end within a while."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        slots = engine._whole(engine._request("/slots"))
        if not any(slot["is_processing"] for slot in slots):
            return True
        time.sleep(0.02)
    return False


def test_dropped_stream_ends_generation(engine):
    long = {"max_tokens": 100000, "ignore_eos": True}
    with engine.generate(PROMPT, **long) as generation:
        assert next(generation)
    assert idle(engine) and generation.finish_reason is None
    # What had arrived by then can still be read, without a finish reason.
    list(generation)
    assert generation.finish_reason is None and generation.text
    for piece in engine.generate(PROMPT, **long):
        break
    assert idle(engine)
    generation = engine.generate(PROMPT, **long)
    next(generation)
    del generation
    assert idle(engine)

    async def cancelled():
        reading = asyncio.create_task(engine.generate(PROMPT, **long)._aread())
        await asyncio.sleep(0.2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.generate(PROMPT, **long), 0.1)

    asyncio.run(cancelled())
    assert idle(engine)


@processes
@posix
@pytest.mark.parametrize(
    "wait",
    ["engine.generate('Once', max_tokens=10**6, ignore_eos=True).read()",
     "asyncio.run(engine.generate('Once', max_tokens=10**6, ignore_eos=True)._aread())"],
)
def test_ctrl_c_interrupts_a_wait(wait):
    program = f"""
import asyncio, sterna
with sterna.Engine(backend="cpu") as engine:
    print("ready", flush=True)
    try:
        {wait}
    except KeyboardInterrupt:
        print("interrupted", len(engine.generate("Once", max_tokens=3).read()) > 0, flush=True)
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", program], **pipes)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=20)
    assert (said, child.returncode) == ("interrupted True\n", 0), errors
    assert time.monotonic() - begun < 10


class SlowHub(http.server.BaseHTTPRequestHandler):
    """A hub with one file, whose content never ends: one byte at a time."""

    COMMIT = "c" * 40
    ended = threading.Event()

    def do_GET(self):
        if "/revision/" in self.path:
            return self.answer({"sha": self.COMMIT})
        if "/tree/" in self.path:
            lfs = {"oid": "a" * 64, "size": 1 << 30}
            return self.answer([{"type": "file", "path": "model.gguf", "size": 1 << 30, "lfs": lfs}])
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"G")
                time.sleep(0.02)
        except OSError:
            self.ended.set()

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@processes
@posix
def test_ctrl_c_ends_a_download(tmp_path):
    program = """
import logging, sys, sterna
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
try:
    sterna.Engine("user/repo", backend="cpu")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    input()
    print(sterna.Engine(backend="cpu").generate("Once", max_tokens=3).read() != "")
"""
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowHub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{hub.server_port}"
    env = dict(os.environ, HF_ENDPOINT=address, HF_HUB_CACHE=str(tmp_path), NO_PROXY="127.0.0.1")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], env=env, **pipes) as child:
        assert "pulling user/repo" in child.stderr.readline()
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        # The download has ended, too, and the process continues.
        assert SlowHub.ended.wait(10)
        said, errors = child.communicate("\n", timeout=20)
        assert (said, child.returncode) == ("True\n", 0), errors
    hub.shutdown()


def test_errors_have_the_messages_of_the_library(engine, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 64)
    for model, options, said in [
        (broken, {}, "broken.gguf"),
        (tmp_path / "missing.gguf", {}, "missing.gguf"),
        (None, {"kv_cache_type": "q9"}, "kv_cache_type="),
        (None, {"no_such_flag": True}, "no parameter 'no_such_flag'"),
        (None, {"n_ctx": 10**9}, "n_ctx=: want"),
        (None, {"ctx_size": 10**9}, "ctx_size=: want"),
        (None, {"n_gpu_layer": 1}, "did you mean 'n_gpu_layers'"),
        (None, {"models_dir": tmp_path}, "no parameter 'models_dir'"),
        (None, {"port": 8080}, "engine.serve"),
        ("user/repo", {"offline": True}, "there is no file user/repo"),
    ]:
        with pytest.raises(sterna.LoadError, match=said):
            sterna.Engine(model, backend="cpu", **options)
    with pytest.raises(sterna.RequestError, match="top_p") as caught:
        engine.generate(PROMPT, top_p=3).read()
    assert caught.value.param == "top_p" and isinstance(caught.value, ValueError)
    with pytest.raises(sterna.RequestError, match="too long") as caught:
        engine.generate(PROMPT * 5000).read()
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(sterna.RequestError, match="schema"):
        engine.chat("x", schema={"type": "nothing"}).read()
    for call in (engine.generate, engine.chat, engine.embed):
        with pytest.raises(TypeError, match="temprature"):
            call(PROMPT, temprature=1)
    with pytest.raises(TypeError, match="generate_many"):
        engine.generate(PROMPT, n=2)
    with pytest.raises(sterna.RequestError, match="reranking"):
        engine.rerank("a", ["b"])


def test_engine_lives_until_its_generations_end():
    assert sterna.Engine(backend="cpu").generate(PROMPT, max_tokens=20).read()


def test_closed_engine_raises():
    engine = sterna.Engine(backend="cpu")
    generation = engine.generate(PROMPT, max_tokens=100000, ignore_eos=True)
    next(generation)
    engine.close()
    engine.close()
    with pytest.raises(sterna.EngineError):
        generation.read()
    with pytest.raises(sterna.EngineError, match="closed"):
        engine.tokenize("x")


def resident_bytes():
    pages = int(STATM.read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@posix
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc of Linux")
def test_memory_stays_flat(engine):
    def some(count):
        for number in range(count):
            engine.generate(f"{PROMPT}, {number}", max_tokens=4, **GREEDY).read()
        return resident_bytes()

    before = some(200)
    assert some(1000) - before < 4 << 20


def test_everything_public_has_a_docstring():
    public = [getattr(sterna, name) for name in sterna.__all__ if name != "__version__"]
    for owner in public:
        assert owner.__doc__, owner
        for name, member in vars(owner).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                function = member.fget if isinstance(member, property) else member
                assert function.__doc__ and "return" in function.__annotations__, f"{owner.__name__}.{name}"
