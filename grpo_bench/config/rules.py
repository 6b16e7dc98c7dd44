"""What a value of the configuration may be, and how groups of plain values become dataclasses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from grpo_bench.grpo.settings import Settings
from grpo_envs.task import Split

T = TypeVar("T")
Plain = dict[str, Any]


class Rule(NamedTuple):
    """Which values are valid: in words, and as a function."""

    expected: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and value != [] and all(map(accepts, value))


def _is_wrapper(value: Any) -> bool:
    if isinstance(value, dict) and len(value) == 1:
        ((name, keywords),) = value.items()
        return _is_text(name) and isinstance(keywords, dict)
    return _is_text(value)


TEXT = Rule("a name", _is_text)
COUNT = Rule("a whole number, more than 0", lambda value: _is_whole(value, 1))
ANYTHING = Rule("a value", lambda value: value is not None)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))

Text = Annotated[str, TEXT]
Count = Annotated[int, COUNT]
Seed = Annotated[int, Rule("a whole number, 0 or more", lambda value: _is_whole(value, 0))]
Rate = Annotated[float, Rule("a number, more than 0", lambda v: _is_number(v) and v > 0)]
Share = Annotated[float, Rule("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1)]
Number = Annotated[float, Rule("a number", _is_number)]
Flag = Annotated[bool, FLAG]
Folder = Annotated[str, Rule("a folder, in quotes if it is a number", _is_text)]
Seconds = Annotated[
    float | None,
    Rule(
        "a number of seconds, more than 0, or null",
        lambda v: v is None or (_is_number(v) and v > 0),
    ),
]
Project = Annotated[
    str | None,
    Rule("the name of a project, or null", lambda value: value is None or _is_text(value)),
]
Layers = Annotated[
    str | list[str],
    Rule(
        "all-linear, or a list of names of layers",
        lambda value: value == "all-linear" or _is_list(value, _is_text),
    ),
]
Tuned = Annotated[
    Split, Rule("validation or tuning", lambda value: value in ("validation", "tuning"))
]
Options = Annotated[
    Mapping[str, Any], Rule("options of the environment", lambda value: isinstance(value, dict))
]
Wrappers = Annotated[
    list[str | dict[str, dict[str, Any]]],
    Rule(
        "a list such as [package.module:Wrapper] or [{package.module:Wrapper: {keyword: value}}]",
        lambda value: isinstance(value, list) and all(map(_is_wrapper, value)),
    ),
]
WIDTHS = Rule(
    "a list of whole numbers, more than 0, such as [64,64]",
    lambda value: _is_list(value, lambda each: _is_whole(each, 1)),
)
SETTING = Rule(
    "a number, true, false or null (only an option that chooses by name takes text: spelt right?)",
    lambda v: v is None or isinstance(v, bool) or _is_number(v),
)
# Of GRPO's options, of the critic of SB3's algorithms, and of a class of one's own.
TYPES = {each.name: str(each.type) for each in fields(Settings)} | {"critic": "str", "id": "str"}


def argument_rule(name: str) -> Rule:
    """The rule for an argument of a network's body; those of a body of one's own are free."""
    return {"widths": WIDTHS, "width": COUNT, "depth": COUNT, "heads": COUNT}.get(name, ANYTHING)


def option_rule(name: str) -> Rule:
    """The rule for an option of an algorithm. Its class checks the value, too."""
    if name.endswith("_size"):
        return COUNT
    kind = TYPES.get(name, "").split(" | ")[0]  # a formula is "str | ...": its name, or a function
    return {"str": TEXT, "bool": FLAG}.get(kind, SETTING)


def others(rule: Callable[[str], Rule]) -> Any:
    """A field for all keys of a group that are no fields; ``rule`` gives the rule for each."""
    return field(default_factory=dict, metadata={"others": rule})


# -- from plain values ----------------------------------------------------------------------------


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def read(cls: type[T], plain: Any, path: str = "") -> T:
    """The dataclass of a group. Where a whole number is expected, ``1e6`` is 1000000, and becomes
    that in ``plain``, too: it is the same run.

    Args:
        plain: the group, as ``OmegaConf.to_container`` gives it.
        path: the dotted name of the group, with a dot at its end.

    Raises:
        ValueError: names the first key that is wrong, missing or unknown.
    """
    assert is_dataclass(cls)
    if not isinstance(plain, dict):
        names = ", ".join(each.name for each in fields(cls))
        raise ValueError(f"{path[:-1]}={plain}: expected a group with {names}")
    values: Plain = {}
    known = {each.name for each in fields(cls)}
    for each in fields(cls):
        name = f"{path}{each.name}"
        if "plain" in each.metadata:
            values[each.name] = plain
            known.remove(each.name)
        elif rule := each.metadata.get("others"):
            rest = [key for key in plain if key not in known]
            values[each.name] = {key: _value(rule(key), plain, key, f"{path}{key}") for key in rest}
            known |= set(rest)
        elif each.name in plain:
            values[each.name] = _field(_types(cls)[each.name], plain, each.name, name)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{name}: missing, expected a value")
    for key in plain:
        if key not in known:
            raise ValueError(f"{path}{key}={plain[key]}: unknown, nothing would read it")
    return cls(**values)


def _field(kind: Any, plain: Plain, key: str, name: str) -> Any:
    if get_origin(kind) is Annotated:
        return _value(kind.__metadata__[0], plain, key, name)
    parts = get_args(kind) or (kind,)
    group: Any = next(part for part in parts if is_dataclass(part))
    if NoneType in parts:
        if plain[key] is None:
            return None
        if not isinstance(plain[key], dict):
            names = ", ".join(each.name for each in fields(group))
            raise ValueError(f"{name}={plain[key]}: expected null, or a group with {names}")
    return read(group, plain[key], f"{name}.")


def _value(rule: Rule, plain: Plain, key: str, name: str) -> Any:
    value = plain[key]
    if not rule.accepts(value) and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not rule.accepts(value):
        raise ValueError(f"{name}={value}: expected {rule.expected}")
    plain[key] = value
    return value
