"""The text view for chat models: prompts, and the rewards of replies."""

from __future__ import annotations

import gymnasium as gym
import pytest

import grpo_envs  # noqa: F401
from grpo_envs.tokens.scoring import last_number, reply_equals


def task_of(name: str, **kwargs):
    return gym.make_vec(name, 1, **kwargs).unwrapped.task


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("42", "42"),
        ("17+25 is 42.", "42"),
        ("17 + 25 = 42!", "42"),
        ("The answer is **42**", "42"),
        (r"\boxed{42}", "42"),
        ("it is -8", "-8"),
        ("it is −8", "−8"),
        ("12-5", "5"),  # the sign belongs to the sum
        ("(3)-5", "5"),
        ("x=-5", "-5"),
        ("1,024, of course", "1,024"),
        ("0.5", "0.5"),
        ("7/3.", "7/3"),
        ("42, or 43", "43"),
        ("no idea", ""),
        ("", ""),
    ],
)
def test_last_number(reply: str, number: str) -> None:
    assert last_number(reply) == number


@pytest.mark.parametrize(
    ("reply", "answer", "right"),
    [
        ("17+25 is 42.", "42", True),
        ("42 is 17+25", "42", False),
        ("The answer is 042", "42", True),
        ("The answer is 42.0", "42", True),
        ("it is 4", "42", False),
        ("no idea", "42", False),
        ("1,23", "123", False),
        ("-42", "42", False),
        # a sign apart from its digits
        ("The answer is - 21", "21", False),
        ("The answer is - 21", "-21", True),
        ("- 18", "-18", True),
        ("x = - 5", "-5", True),
        ("40 - 22 = 18", "18", True),
        ("40 - 22", "22", True),
        ("(3) - 5", "5", True),
        # typographic signs: a minus, or a dash
        ("−21", "21", False),
        ("−18", "-18", True),
        ("–21", "21", False),
        ("it is –8", "-8", True),
        ("40 – 22 = 18", "18", True),
        ("The answer – 21", "21", True),
        ("The answer—21", "21", True),
        ("between 20-21", "21", True),
        # words, currencies and bold type before the digits
        ("It is minus 21", "21", False),
        ("It is Negative 21", "-21", True),
        ("40 minus 22", "22", True),
        ("-$21", "21", False),
        ("_-42_", "-42", True),
        ("−**21**", "-21", True),
        # exponents and powers
        ("about 1e21", "21", False),
        ("1e21", "1" + "0" * 21, True),
        ("4.2e1", "42", True),
        ("1.5E-3", "0.0015", True),
        ("10^21", "21", False),
        ("10²¹", "1" + "0" * 21, True),
        (r"$4.2 \times 10^{1}$", "42", True),
        ("-4.2 × 10^1", "-42", True),
        ("42²", "42", False),
        ("2^5 = 32", "32", True),
        ("1e99999999999", "1", False),
        # decimals and separators
        (".5", "5", False),
        ("it is -.5", "-0.5", True),
        ("so...5", "5", True),
        ("42.0", "42", True),
        ("1,234", "1234", True),
        ("1,234", "234", False),
        ("42_000", "42000", True),
        ("42_000", "0", False),
        ("_42_", "42", True),
    ],
)
def test_reply_equals(reply: str, answer: str, right: bool) -> None:
    assert reply_equals(reply, answer) is right


def test_long_replies() -> None:
    assert last_number("1," * 200_000 + "x") == ("1," * 200_000).rstrip(",")
    assert last_number("-" * 400_000) == ""
    assert last_number("-" * 400_000 + "5") == "-5"
    assert last_number("1² " * 100_000) == "1^2"


def test_a_reply_that_is_a_value_is_judged_like_a_text() -> None:
    task = task_of("GRPO-Arithmetic-v0")
    ids = task.problem_ids("validation")[:50]
    answers = [str(answer) for answer in task.problems.answers(ids).tolist()]
    for texts in (answers, ["0"] * 50):
        replies, whole = task.score_replies(ids, texts), task.score_texts(ids, texts)
        assert replies.reward.tolist() == whole.reward.tolist()
    sentences = [f"The sum is {answer}." for answer in answers]
    assert task.score_replies(ids, sentences).success.all()
    assert not task.score_texts(ids, sentences).success.any()
    with pytest.raises(ValueError, match="49 completions of 50 problems"):
        task.score_replies(ids, answers[1:])


def test_arithmetic_asks_for_the_number() -> None:
    task = task_of("GRPO-Arithmetic-v0")
    ids = task.problem_ids("test")[:3]
    chats = task.chats(ids)
    assert [chat[-1]["content"] for chat in chats] == task.prompts(ids)
    assert all(len(chat) == 1 and chat[0]["role"] == "user" for chat in chats)
    with pytest.raises(ValueError, match=r"examples=1: expected 0, ArithmeticTask has none"):
        task.chats(ids, 1)


def test_format_shows_training_problems_in_the_form_that_is_judged() -> None:
    task = task_of("GRPO-Format-v0")
    ids = task.problem_ids("validation")[:5]
    chats = task.chats(ids, examples=2)
    for chat, text in zip(chats, task.expressions(ids), strict=True):
        roles = [message["role"] for message in chat]
        assert roles == ["system", *["user", "assistant"] * 2, "user"]
        assert chat[-1]["content"] == f"What is {text}?"
        assert chat[:-1] == chats[0][:-1]
    training = task.problem_ids("train")
    asked = [f"What is {text}?" for text in task.expressions(training)]
    for question, reply in (chats[0][1:3], chats[0][3:5]):
        place = asked.index(question["content"])
        shown = task.score_replies(training[place : place + 1], [reply["content"]])
        assert shown.success.all() and shown.components["format"].all()
    assert [message["content"] for message in task.chats(ids)[0]] == task.prompts(ids[:1])


@pytest.mark.parametrize("examples", [-1, 10_000])
def test_bad_numbers_of_examples(examples: int) -> None:
    task = task_of("GRPO-Format-v0")
    with pytest.raises(ValueError, match=f"examples={examples}: expected 0 to 1995"):
        task.chats(task.problem_ids("train")[:1], examples)
