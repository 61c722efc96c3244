"""Tests of what documents say, and of the generated types."""

import doctest
import json
import pathlib
import shutil
import subprocess
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


PROGRAM = """import sterna
engine = sterna.Engine(backend='cpu', cache_prompt=False, parallel=8)
engine.generate('a', repeat_penalty=1.1, max_tokens=3)
engine.chat_many(['a'], n=2, temperature=0.5, top_logprobs=1)
engine.generate('a', temprature=1)
engine.chat_many(['a'], max_token=1)
sterna.Engine(n_gpu_layer=1)
"""


def mypy(folder):
    api = pytest.importorskip("mypy.api")
    said, _, status = api.run(["--strict", f"--cache-dir={folder}", str(folder / "program.py")])
    return said, status, "Unexpected keyword argument"


def pyright(folder):
    pytest.importorskip("pyright")
    if not shutil.which("node"):
        pytest.skip("pyright requires node")
    settings = {"typeCheckingMode": "strict", "include": ["program.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", f"--pythonpath={sys.executable}", f"--project={folder}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return ended.stdout, ended.returncode, "No parameter named"


@pytest.mark.skipif(sys.platform == "win32", reason="type checkers are tested on Linux")
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_know_the_names_of_parameters(checker, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    said, status, words = checker(tmp_path)
    lines = [line for line in said.splitlines() if "error:" in line]
    assert status == 1 and len(lines) == 3, said
    for line, name in zip(lines, ("temprature", "max_token", "n_gpu_layer")):
        assert f'{words} "{name}"' in line
