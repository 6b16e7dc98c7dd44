"""What the world may change between two episodes of one problem: global random generators and the
clock. An environment that keeps the group contract does not notice."""

from __future__ import annotations

import datetime
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorWrapper

SECONDS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")  # each also _ns
DATES = {"gmtime": 0, "localtime": 0, "ctime": 0, "strftime": 1}  # position of the time, else now
SHIFT = 1_000_003.7  # seconds: another day of the week, hour, minute and second; 3 make a month


@contextmanager
def disturbed(n: int, modules: Sequence[ModuleType] = ()) -> Iterator[None]:
    """The n-th disturbance: the generators of Python, numpy and torch have other states, and the
    clock is later. torch only takes part where it is imported.

    Args:
        modules: have the later clock also under names of their own (``from time import time``).
    """
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        random.seed(n)
        np.random.seed(n)  # noqa: NPY002
        if torch is not None:  # torch.manual_seed would also seed GPUs, for good
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            torch.default_generator.manual_seed(n)
        later = _later_clocks(n * SHIFT)
        for module in (time, datetime, *modules):
            for name, value in list(vars(module).items()):
                if id(value) in later:
                    stack.callback(setattr, module, name, value)
                    setattr(module, name, later[id(value)])
        yield


def modules_of(env: Any) -> list[ModuleType]:
    """All modules of the packages that define the environment, its wrappers and their parents."""
    layers = [env]
    for layer in layers:
        if isinstance(layer, gym.Wrapper | VectorWrapper):
            layers.append(layer.env)
        elif isinstance(layer, SyncVectorEnv):
            layers += layer.envs
    classes = {parent for layer in layers for parent in type(layer).__mro__}
    packages = {each.__module__.partition(".")[0] for each in classes}
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and isinstance(module, ModuleType)
    ]


def _later_clocks(shift: float) -> dict[int, Any]:
    """What replaces each clock, by the ``id`` of the clock."""
    pairs: list[tuple[Any, Any]] = []
    for name in SECONDS:
        for clock, more in ((name, shift), (f"{name}_ns", int(shift * 1e9))):
            pairs.append((getattr(time, clock), _later(getattr(time, clock), more)))
    for name, position in DATES.items():
        pairs.append((getattr(time, name), _later_date(getattr(time, name), position, shift)))
    pairs.append((datetime.datetime, _later_datetime(shift)))
    return {id(clock): later for clock, later in pairs}


def _later(clock: Any, shift: float) -> Any:
    return lambda: clock() + shift


def _later_date(function: Any, position: int, shift: float) -> Any:
    clock, parts = time.time, time.localtime

    def later(*args: Any) -> Any:
        if len(args) > position:
            return function(*args)
        seconds = clock() + shift
        return function(*args, parts(seconds) if position else seconds)

    return later


class _AsItsParent(type):
    """Instances of the parent class count as instances of the class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])


def _later_datetime(shift: float) -> type:
    """``datetime.datetime`` with a later present. It makes instances of the real class."""
    real, delta = datetime.datetime, datetime.timedelta(seconds=shift)
    members = {  # today() asks time.time()
        "__new__": lambda cls, *args, **kwargs: real(*args, **kwargs),
        "now": staticmethod(lambda tz=None: real.now(tz) + delta),
        "utcnow": staticmethod(lambda: real.utcnow() + delta),
    }
    return _AsItsParent("datetime", (real,), members)
