"""Reports of the engine's threads to Python: a new piece of an answer, a log message, progress of a download.

They call no Python themselves, but write into a `Mail`, which one thread of this module reads.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional, Union

from . import _sterna

if TYPE_CHECKING:
    import asyncio

#: A piece from the native part: the head (an HTTP status and headers), bytes of the body, or the end.
Piece = Union["tuple[int, list[tuple[bytes, bytes]]]", bytes, None]


class Mailbox:
    """The mail of this process, and the thread that reads it."""

    def __init__(self) -> None:
        self.mail = _sterna.Mail()
        self._fd = _descriptor(self.mail.fd())
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[], object]] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._logs = threading.RLock()
        # The package is imported faster without it.
        import logging

        #: Modules of the engine have loggers of their own below it, such as `sterna.access`.
        self._get_logger, self._logger = logging.getLogger, logging.getLogger("sterna")
        self.update_level()
        self._thread = threading.Thread(target=self._run, name="sterna", daemon=True)
        self._thread.start()

    def update_level(self) -> None:
        """Tells the engine which log messages are wanted."""
        self.mail.set_level(max(1, min(255, self._logger.getEffectiveLevel())))

    def expect(self, wake: Callable[[], object]) -> int:
        """Number for `Answer.poll`; then `wake` is called in another thread."""
        number = next(self._numbers)
        self._waiting[number] = wake
        return number

    def forget(self, number: int) -> None:
        """Does not call the function of `expect` any more."""
        self._waiting.pop(number, None)

    def deliver(self) -> None:
        """Delivers what has arrived."""
        wakes, messages, progress = self.mail.take()
        for number in wakes:
            if wake := self._waiting.pop(number, None):
                wake()
        self._progress.update({file: (done, total) for file, done, total in progress})
        if messages:
            with self._logs:
                for level, target, message in messages:
                    self._get_logger(_logger_name(target)).log(level, "%s", message)

    def take_progress(self) -> dict[str, tuple[int, int]]:
        """Takes the progress of downloads: per file the bytes so far, and in total."""
        taken, self._progress = self._progress, {}
        return taken

    def close(self) -> None:
        """Ends the thread."""
        self.mail.close()
        self._thread.join(1)

    def forked(self) -> None:
        """Closes what the child of a fork has of it."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _run(self) -> None:
        while os.read(self._fd, 64):
            try:
                self.deliver()
            except Exception:
                self._logger.exception("a message of the engine could not be delivered")


def _descriptor(handle: int) -> int:
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(handle, os.O_RDONLY)
    return handle


def _logger_name(target: str) -> str:
    """The logger of a Rust module, for example `sterna.serve.worker` of `sterna_serve::worker`."""
    return "sterna" if target.startswith("sterna::cli") else target.replace("_", ".", 1).replace("::", ".")


_box: Optional[Mailbox] = None
_start = threading.Lock()
#: Native engines that may have to be closed at the end of the process.
_engines: weakref.WeakSet[_sterna.Engine] = weakref.WeakSet()


def mailbox() -> Mailbox:
    """The mailbox of this process."""
    global _box
    if _box is None:
        with _start:
            _box = _box or Mailbox()
    return _box


def close_at_exit(engine: _sterna.Engine) -> None:
    """Closes an engine before the interpreter ends."""
    _engines.add(engine)


@atexit.register
def _end() -> None:
    # Functions that users register later run earlier, so they can still use their engines.
    _sterna.end()
    for engine in list(_engines):
        engine.close()
    if _box is not None:
        _box.close()


def _forked() -> None:
    global _box, _start
    _sterna.forked()
    box, _box, _start = _box, None, threading.Lock()
    if box is not None:
        box.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


async def next_piece(answer: _sterna.Answer) -> Piece:
    """Waits for the next piece of an answer without blocking the event loop."""
    import asyncio

    loop, box = asyncio.get_running_loop(), mailbox()
    while True:
        came = loop.create_future()

        def settle(came: asyncio.Future[None] = came) -> None:
            if not came.done():
                came.set_result(None)

        def wake(settle: Callable[[], None] = settle) -> None:
            # A closed loop has no waiting task.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle)

        number = box.expect(wake)
        try:
            piece = answer.poll(box.mail, number)
            if piece is not False:
                return piece
            await came
        finally:
            box.forget(number)
