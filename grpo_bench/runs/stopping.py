"""How the programs are stopped: by Ctrl-C and SIGTERM, with a message and no traceback."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

GOES_ON = "Stopped. The same command goes on with what is missing."


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block ends. (Only in the main thread, which alone can set
    handlers, and gets all signals.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for first in came[:1]:
        signal.raise_signal(first)


def stopping(main: Callable[[], Any], message: str = "Stopped.") -> None:
    """Run a program; Ctrl-C and SIGTERM end it with a message and no traceback. The line with which
    it ends by itself may quote names and errors: no escape sequence of theirs gets through."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print(message, file=sys.stderr)
        sys.exit(130)
    except SystemExit as end:
        if isinstance(end.code, str):
            # not before: the import takes half a second
            from grpo_bench.records.texts import printable

            end.code = printable(end.code)
        raise
