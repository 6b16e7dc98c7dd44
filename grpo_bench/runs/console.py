"""The progress of a run or a sweep: bars on a terminal, elsewhere a line from time to time."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from grpo_bench.records.texts import printable

SIGN_OF_LIFE = 30.0  # seconds without a line after which one is printed where there is no terminal
REFRESH = 0.2  # seconds between two pictures of a bar that is drawn by the run itself


def make_bars(console: Console, auto_refresh: bool = True) -> Progress:
    """Bars with a field ``status``, at most 79 columns wide with our names; none unless the console
    is a terminal. A status is not markup: it may quote a language model, and rich would take
    ``[/INST]`` for a closing tag."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=auto_refresh,
        transient=True,
        disable=not console.is_terminal,
    )


def as_status(stage: str, success: float) -> str:
    """The stage of a run, and its latest success if there is one: a rate, a score, or a return."""
    stage = printable(stage)
    return stage if math.isnan(success) else f"{stage}, success {success:.3f}"


class OneRun:
    """The progress of a run in this process. The run draws it, not a thread, so that it takes no
    time from training."""

    def __init__(self, name: str) -> None:
        self.name = printable(name)
        self.console = Console(highlight=False)
        self.bars = make_bars(self.console, auto_refresh=False)
        self.bar: TaskID = self.bars.add_task(self.name, total=1.0, status="starts")
        self.last = time.monotonic()

    def __enter__(self) -> OneRun:
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bars.stop()

    def show(self, stage: str, share: float, success: float) -> None:
        """As ``grpo_bench.runs.job.Progress``."""
        status = as_status(stage, success)
        self.bars.update(self.bar, completed=share, status=status)
        if time.monotonic() - self.last < (SIGN_OF_LIFE if self.bars.disable else REFRESH):
            return
        self.last = time.monotonic()
        if self.bars.disable:
            line = f"{self.name}: {100 * share:.0f} %, {status}"
            self.console.print(line, markup=False, soft_wrap=True)
        else:
            self.bars.refresh()
