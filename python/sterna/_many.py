"""Many texts in one call: they are generated in one batch, and cancelled as one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar, Union

from ._generation import Generation
from ._progress import counted

Text = TypeVar("Text", bound=Generation)
#: True for a progress bar, which names what it counts; or such a name.
Shown = Union[bool, str]

#: Number of texts that are looked at for the progress bar: the engine begins them in order.
AHEAD = 64
#: Seconds between looks.
PAUSE = 0.02


def finished(texts: list[Text], progress: Shown) -> list[Text]:
    """Waits for all texts. Cancels them if it is interrupted, or if one of them fails."""
    try:
        if not progress:
            for text in texts:
                text.read()
            return texts
        shown, open_texts = counted(len(texts), progress, "texts"), list(texts)
        try:
            while open_texts:
                ended = [text for text in open_texts[:AHEAD] if text._advance()]
                open_texts = [text for text in open_texts if text not in ended]
                shown.update(len(ended))
                if not ended:
                    time.sleep(PAUSE)
        finally:
            shown.close()
        return texts
    except BaseException:
        _cancel(texts)
        raise


async def afinished(texts: list[Text], progress: Shown) -> list[Text]:
    """The async version of `finished`."""
    import asyncio

    shown = counted(len(texts), progress, "texts")

    async def read(text: Text) -> None:
        await text
        shown.update(1)

    try:
        reading = [asyncio.ensure_future(read(text)) for text in texts]
        try:
            await asyncio.gather(*reading)
        finally:
            for task in reading:
                task.cancel()
        return texts
    except BaseException:
        _cancel(texts)
        raise
    finally:
        shown.close()


def _cancel(texts: Sequence[Generation]) -> None:
    for text in texts:
        text.cancel()
