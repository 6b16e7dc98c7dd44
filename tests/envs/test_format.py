"""Specific to the format task: two components, the structure, its masks and demonstrations."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_envs.task import Outcome
from grpo_envs.tokens.format import FormatEnv, FormatTask
from grpo_envs.tokens.vocabulary import EOS, VOCABULARY, decode, encode

TASK = FormatTask("easy")
PROBLEM = TASK.problems.ids(np.array([[0]]), np.array([[17, 25]]))  # 17+25


def outcome_of(text: str, task: FormatTask = TASK) -> Outcome:
    """The outcome of writing ``text`` as tokens, up to the end of the episode."""
    state = task.start(PROBLEM)
    for token in encode(text):
        outcome = task.step(state, np.array([token]))
        if outcome.terminated[0]:
            return outcome
    raise AssertionError("the episode goes on")


R = "<reasoning>17+25</reasoning>"


@pytest.mark.parametrize(
    ("text", "accuracy", "form"),
    [
        (R + "<answer>42</answer><eos>", 1, 1),
        (R + "<answer>+042</answer><eos>", 1, 1),
        (R + "<answer>41</answer><eos>", 0, 1),
        (R + "<answer>17+25</answer><eos>", 0, 1),
        (R + "<answer></answer><eos>", 0, 0),
        ("<answer>42</answer><eos>", 1, 0),
        ("<reasoning></reasoning><answer>42</answer><eos>", 1, 0),
        ("<reasoning><answer>42</answer></reasoning><eos>", 0, 0),
        (R + "<answer>42</answer><answer>42</answer><eos>", 0, 0),
        (R + "<answer>42</answer><answer>4<eos>", 1, 0),
        (R + "<answer>42</answer>2<eos>", 1, 0),
        (R + "<answer>42</answer><pad><eos>", 1, 0),
        (R + "<answer>42<eos>", 0, 0),
        ("42<eos>", 0, 0),
        ("<eos>", 0, 0),
    ],
)
def test_both_components(text: str, accuracy: int, form: int) -> None:
    outcome = outcome_of(text)
    assert outcome.components["accuracy"] == accuracy
    assert outcome.components["format"] == form
    assert outcome.reward == accuracy + 0.5 * form
    assert outcome.success == accuracy * form


def test_a_text_without_room_for_eos_is_judged() -> None:
    """16 tokens: the last one closes the answer, and there is no room for EOS."""
    assert TASK.max_tokens == 16
    text = "<reasoning>" + "1" * 10 + "</reasoning><answer>42</answer>"
    assert len(encode(text)) == 16
    assert outcome_of(text).reward == 1.5
    assert outcome_of(text.replace("1", "11", 1)).reward == 0


@pytest.mark.parametrize("weight", [0.0, 0.25, 2.0])
def test_weight(weight: float) -> None:
    task = FormatTask("easy", format_weight=weight)
    assert task.oracle_score == 1 + weight
    assert outcome_of(R + "<answer>42</answer><eos>", task).reward == 1 + weight
    assert outcome_of(R + "<answer>41</answer><eos>", task).reward == weight


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_bad_weight(weight: float) -> None:
    with pytest.raises(ValueError, match="format_weight="):
        FormatTask("easy", format_weight=weight)


def test_lengths_are_as_documented() -> None:
    """Four tags, the problem of 5, 10 and 19 tokens, the longest answer of 3, 7 and 13, and EOS."""
    tasks = [FormatTask(preset) for preset in ("easy", "medium", "hard")]
    assert [task.max_tokens - 3 for task in tasks] == [13, 22, 37]
    assert [task.length for task in tasks] == [6 + 16, 11 + 25, 20 + 40]


def test_too_few_tokens_for_the_demonstrations() -> None:
    """The longest restates two numbers of two digits and answers with three: it just fits."""
    with pytest.raises(ValueError, match="max_tokens=12: expected at least 13"):
        FormatTask("easy", max_tokens=12)
    task = FormatTask("easy", max_tokens=13)
    ids = task.problem_ids("train")
    for noise, longest in ((0.0, 13), (1.0, 12)):  # a tag is left out
        tokens, mask = task.demonstrations(ids, np.random.default_rng(0), noise=noise)
        assert mask.sum(axis=1).max() == longest
        assert ((tokens == EOS).sum(axis=1) == 1).all()


def test_a_demonstration_by_hand() -> None:
    tokens, mask = TASK.demonstrations(PROBLEM, np.random.default_rng(0), noise=0.0)
    (text,) = TASK.expressions(PROBLEM)
    assert decode(tokens[0]) == f"{text}=<reasoning>{text}</reasoning><answer>42</answer>"
    assert decode(tokens[0][mask[0]]) == f"<reasoning>{text}</reasoning><answer>42</answer>"


def test_noisy_demonstrations_leave_the_reasoning_open_and_lose_a_ten() -> None:
    """The two slips occur independently, in all four combinations, and no other slip does."""
    ids = np.repeat(PROBLEM, 400)
    (text,) = TASK.expressions(PROBLEM)
    for noise, close, value in (
        (1.0, {""}, {"32"}),
        (0.5, {"", "</reasoning>"}, {"32", "42"}),
    ):
        tokens, mask = TASK.demonstrations(ids, np.random.default_rng(0), noise=noise)
        seen = {decode(row[part]) for row, part in zip(tokens, mask, strict=True)}
        assert seen == {
            f"<reasoning>{text}{tag}<answer>{number}</answer>" for tag in close for number in value
        }


def test_masks_follow_the_structure() -> None:
    state = TASK.start(PROBLEM)
    allowed = []
    for token in [*encode("<reasoning>1</reasoning><answer>-4</answer>"), EOS]:
        allowed.append({VOCABULARY[i] for i in TASK.action_masks(state)[0].nonzero()[0]})
        TASK.step(state, np.array([token]))
    digits = set("0123456789")
    thoughts = digits | {"-", "+", "*", "//", "mod", "(", ")", "="}
    assert allowed == [
        {"<reasoning>"},
        thoughts,
        thoughts | {"</reasoning>"},
        {"<answer>"},
        digits | {"+", "-"},
        digits,
        digits | {"</answer>"},
        {"<eos>"},
    ]


def test_masks_allow_only_the_rest_when_tokens_run_out() -> None:
    """Four tokens are left after 12: just enough for the rest of the structure."""
    state = TASK.start(PROBLEM)
    for token in encode("<reasoning>" + "1" * 11):
        TASK.step(state, np.array([token]))
    for expected in ({"</reasoning>"}, {"<answer>"}, set("0123456789"), {"</answer>"}):
        masks = TASK.action_masks(state)[0]
        assert {VOCABULARY[i] for i in masks.nonzero()[0]} == expected
        outcome = TASK.step(state, masks.nonzero()[0][:1])
    assert outcome.terminated[0]
    assert outcome.components["format"][0] == 1


def test_verdicts() -> None:
    env = FormatEnv(render_mode="ansi")
    lines = {}
    for text in (R + "<answer>42</answer><eos>", "<answer>42</answer><eos>", "<eos>"):
        env.reset(options={"problem_id": PROBLEM[0]})
        for token in encode(text):
            env.step(token)
        lines[text[:10]] = env.render().splitlines()[-1]
    assert list(lines.values()) == [
        "right: right value, well formed; the answer is 42",
        "wrong: right value, not well formed; the answer is 42",
        "wrong: wrong value, not well formed; the answer is 42",
    ]
