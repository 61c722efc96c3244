"""Tests of what documents say, and of the generated types."""

import doctest
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent


def test_examples_of_the_readme_are_true():
    failed, tried = doctest.testfile(str(FOLDER / "README.md"), module_relative=False, encoding="utf-8")
    assert tried > 5 and failed == 0


def test_types_of_parameters_are_those_of_the_tables(engine, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import generate_types

    # The version of Python does not matter.
    assert generate_types.PATH.read_text("utf-8") == generate_types.text(engine), (
        f"python {generate_types.__file__} writes the file anew"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="type checkers are tested on Linux")
def test_type_checkers_know_the_names_of_parameters(tmp_path):
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(
        "import sterna\n"
        "engine = sterna.Engine(backend='cpu', cache_prompt=False, parallel=8)\n"
        "engine.generate('a', repeat_penalty=1.1, max_tokens=3)\n"
        "engine.chat_many(['a'], n=2, temperature=0.5, top_logprobs=1)\n"
        "engine.generate('a', temprature=1)\n"
        "engine.chat_many(['a'], max_token=1)\n"
        "sterna.Engine(n_gpu_layer=1)\n"
    )
    said, _, status = api.run(["--strict", f"--cache-dir={tmp_path}", str(program)])
    lines = [line for line in said.splitlines() if "error:" in line]
    assert status == 1 and len(lines) == 3, said
    for line, name in zip(lines, ("temprature", "max_token", "n_gpu_layer")):
        assert f'Unexpected keyword argument "{name}"' in line
