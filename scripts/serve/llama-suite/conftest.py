"""Runs llama.cpp's server tests against `sterna serve`; scripts/serve/suite replaces their own conftest,
which downloads models, with this one.

Tests listed in $SERVE_SUITE_LEFT_OUT must fail, all others must pass. With SERVE_SUITE=quick the former are
not run: they take most of the time.
"""

import os
import pathlib
import socket

import pytest

# A port that is free now; the tests use it for one server after another.
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["PORT"] = str(free.getsockname()[1])

from utils import server_instances  # noqa: E402 (it reads the port)


def left_out():
    """reason[test]: a test is FILE::NAME, for all its parameters, or FILE::NAME[PARAMETERS]."""
    reasons, reason = {}, None
    for line in pathlib.Path(os.environ["SERVE_SUITE_LEFT_OUT"]).read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            assert reason and line not in reasons, f"{line}: want a reason above it, and to be there once"
            reasons[line] = reason
    return reasons


def pytest_collection_modifyitems(config, items):
    reasons = left_out()
    named = set()
    for item in items:
        test = item.nodeid.removeprefix("unit/")
        for name in (test, test.split("[")[0]):
            if name in reasons:
                named.add(name)
                quick = os.environ.get("SERVE_SUITE") == "quick"
                reason = reasons[name]
                item.add_marker(
                    pytest.mark.skip(reason) if quick else pytest.mark.xfail(reason=reason, strict=True)
                )
                break
    unknown = reasons.keys() - named
    if unknown and not config.args_source.name == "ARGS":
        raise pytest.UsageError(f"no test has the name: {', '.join(sorted(unknown))}")


@pytest.fixture(autouse=True)
def stop_servers():
    yield
    for server in list(server_instances):
        server.stop()
