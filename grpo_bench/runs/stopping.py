"""What the programs print when they are stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

GOES_ON = "Stopped. The same command goes on with what is missing."


def stopping(main: Callable[[], Any], message: str = "Stopped.") -> None:
    """Run a program; Ctrl-C and SIGTERM end it with a message and no traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print(message, file=sys.stderr)
        sys.exit(130)
