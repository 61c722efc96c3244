"""Progress bars: by tqdm if it is installed, otherwise lines on stderr."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Optional, Union

from ._mail import Mailbox

#: True, false, the default (only on a terminal), or a function of a file, its bytes so far and in total.
Progress = Union[bool, None, Callable[[str, int, int], object]]


class _Lines:
    """A progress bar in one line of stderr."""

    def __init__(self, total: int, desc: str, **_: Any) -> None:
        self.total, self.desc, self.n, self._shown = total, desc, 0, -1

    def update(self, n: int) -> None:
        self.n += n
        percent = 100 * self.n // max(self.total, 1)
        if percent != self._shown:
            self._shown = percent
            print(f"\r{self.desc}: {percent} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)


def bar(total: int, description: str, **options: Any) -> Any:
    """A progress bar with the methods `update` and `close`."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _Lines(total, description)
    return tqdm(total=total, desc=description, **options)


class _Nothing:
    """No progress bar."""

    def update(self, n: int) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Shows nothing."""


def counted(total: int, progress: Union[bool, str], what: str) -> Any:
    """A progress bar of `total` things, if `progress` asks for it, which may be their name."""
    if not progress:
        return _Nothing()
    return bar(total, progress if isinstance(progress, str) else what, unit="it")


class _Bars:
    """A progress bar per file."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}

    def __call__(self, file: str, done: int, total: int) -> None:
        if file not in self.of:
            self.of[file] = bar(total, os.path.basename(file), unit="B", unit_scale=True)
        self.of[file].update(done - self.of[file].n)

    def close(self) -> None:
        for of in self.of.values():
            of.close()


@contextlib.contextmanager
def downloads(progress: Progress, box: Mailbox) -> Iterator[Callable[[], None]]:
    """A function to be called at intervals while files are downloaded, which reports their progress."""
    is_off = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "0") not in ("", "0")
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty() and not is_off
    bars = _Bars()
    tell: Optional[Callable[[str, int, int], object]]
    tell = bars if progress is True else None if progress is False else progress
    box.take_progress()

    def tick() -> None:
        box.deliver()
        for file, (done, total) in box.take_progress().items():
            if tell is not None:
                tell(file, done, total)

    try:
        yield tick
        tick()
    finally:
        bars.close()
