"""The texts of records on one line, and on a terminal."""

from __future__ import annotations

import traceback

import pytest

from grpo_bench.records.texts import LONGEST_REASON, printable, reason_of


def trace_of(error: BaseException) -> str:
    """What a record's error.txt has."""
    try:
        raise error
    except BaseException as raised:
        return "".join(traceback.format_exception(raised))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("one line"), "ValueError: one line"),
        (ValueError("loss=tensor(1.,\n  grad_fn=<SubBackward0>)"), "ValueError: loss=tensor(1.,"),
        (
            RuntimeError("CUDA error: x\nCompile with TORCH_USE_CUDA_DSA"),
            "RuntimeError: CUDA error: x",
        ),
        (KeyError("a"), "KeyError: 'a'"),
        (MemoryError(), "MemoryError"),
        (ValueError("\n  starts below"), "ValueError: starts below"),
        (ValueError("parts:\n  a\n  b"), "ValueError: parts: a"),
        (ExceptionGroup("two", [ValueError("x")]), "ExceptionGroup: two (1 sub-exception)"),
    ],
)
def test_the_type_and_first_line_of_an_exception(error: BaseException, reason: str) -> None:
    assert reason_of(trace_of(error)) == reason


def test_of_a_chain_the_last_exception() -> None:
    error = ValueError("second\nline")
    error.__cause__ = KeyError("first")
    error.add_note("a note")
    assert reason_of(trace_of(error)) == "ValueError: second"


def test_a_syntax_error() -> None:
    with pytest.raises(SyntaxError) as found:
        compile("a b", "x.py", "exec")
    assert reason_of(trace_of(found.value)) == "SyntaxError: invalid syntax"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("\n \n", ""),
        ("Traceback (most recent call last):\n", ""),
        ("the process ended with exit code 7", "the process ended with exit code 7"),
        ("ValueError: a\nb", "ValueError: a"),
        ("x" * 5000, "x" * LONGEST_REASON),
        ("a\x1b[31mb", "ab"),
    ],
)
def test_other_texts(text: str, reason: str) -> None:
    assert reason_of(text) == reason


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é ✓ 漢\n\tnext", "plain é ✓ 漢\n\tnext"),
        ("a \x1b[2J\x1b]0;owned\x07b", "a b"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x1b[38;5;196mred\x1b[0m", "red"),
        ("\x1b(B\x1bc\x1b7x", "x"),
        ("a\x9b2Jb\x85\x7f\x08\r", "a2Jb"),
        ("end\x1b", "end"),
        ("evil\u202egnp.exe\u2066", "evilgnp.exe"),
    ],
)
def test_escape_sequences_and_control_characters_do_not_reach_a_terminal(
    text: str, shown: str
) -> None:
    assert printable(text) == shown
