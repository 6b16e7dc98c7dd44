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
    ],
)
def test_reply_equals(reply: str, answer: str, right: bool) -> None:
    assert reply_equals(reply, answer) is right


def test_long_replies() -> None:
    assert last_number("1," * 200_000 + "x") == ("1," * 200_000).rstrip(",")
    assert last_number("-" * 400_000) == ""


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
