"""How a child process takes Ctrl-C, for ``preexec_fn``.

A shell starts a job in the background with SIGINT ignored, and its children inherit that. A test of
Ctrl-C must not depend on how the tests themselves were started.
"""

import signal


def hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
