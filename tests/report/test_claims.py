"""The claim ledger: verdicts on made-up evidence, and that the committed one is what it gives."""

import math
from pathlib import Path

import pandas as pd
import pytest

from grpo_bench.report.claims import ledger
from grpo_bench.report.claims.evidence import Evidence, rows_of
from grpo_bench.report.claims.judge import judge, parse_claim
from grpo_bench.report.text.writers import csv
from grpo_bench.stats import Spread, deviation_ratio_interval
from tools.reference.claim_ledger import claim_pages
from tools.reference.committed import Committed

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "results" / "claims.yaml"

SPEEDS = pd.DataFrame(
    {
        "env": ["a", "b", "c", "d", "a"],
        "algo": ["grpo", "grpo", "grpo", "grpo", "ppo"],
        "ok": [3, 3, 4, 1, 3],
        "ratio": [2.5, 1.5, 2.1, 2.2, math.nan],
        "ratio_low": [2.2, 1.2, 1.8, math.nan, math.nan],
        "ratio_high": [2.8, 1.9, 2.4, math.nan, math.nan],
        "bound": [1.3, math.nan, 1.2, 1.1, math.nan],
        "success": [0.5, 0.5, 0.5, 0.5, 0.5],
        "success_low": [0.4, 0.4, 0.4, 0.4, 0.3],
        "success_high": [0.6, 0.6, 0.6, 0.6, 0.7],
        "success_sd": [0.1, 0.1, 0.1, 0.1, 0.2],
        "success_kurtosis": [1.5, 1.5, 1.5, 1.5, 1.5],  # of any three values evenly apart
    }
)
BYTES = pd.DataFrame(
    {
        "model": ["s", "s", "s", "t", "t"],
        "algo": ["grpo", "ppo", "ppo", "grpo", "ppo"],
        "critic": [None, "separate", "shared", None, "separate"],
        "bytes": [50, 100, 50, 60, 100],
        "fits": [True, False, True, True, True],
    }
)
TABLES = {"speed.csv": SPEEDS, "bytes.csv": BYTES}.get


def speed(envs, **changed):
    block = {
        "what": f"speed on {' and '.join(envs)}",
        "only_if": f"tasks like {envs[0]} count",
        "short": f"tasks like {envs[0]}",
        "table": "speed.csv",
        "rows": {"algo": "grpo", "env": list(envs)},
        "value": "ratio",
        "label": "{env}",
        "at_least": 2,
    }
    return block | changed


def claim(*evidence, sources=({"what": "someone", "url": "https://example.org"},)):
    entry = {"says": "It is fast", "sources": list(sources), "protocol": "Measured."}
    return parse_claim("fast", entry | {"evidence": list(evidence)})


def verdict(*evidence, **options):
    return str(judge(claim(*evidence, **options), TABLES).verdict)


NOT_THERE = {"what": "speed elsewhere", "table": "elsewhere.csv"}


# -- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("envs", "expected"),
    [
        ("a", "holds"),  # 2.2 to 2.8
        ("b", "does not hold"),  # 1.2 to 1.9
        ("c", "cannot tell at 4 seeds"),  # 1.8 to 2.4, on both sides of 2
        ("d", "cannot tell at 1 seed"),  # one seed has no interval
        ("cd", "cannot tell at 4 seeds"),
        ("ab", "holds only if tasks like a count (a)"),
        ("ac", "holds only if tasks like a count (a)"),
        ("bc", "does not hold (cannot tell at 4 seeds: c)"),
        ("e", "untested: speed on e"),
    ],
)
def test_verdict_of_one_piece_of_evidence(envs, expected):
    assert verdict(speed(envs)) == expected


def test_conditions_are_those_of_what_passes():
    assert verdict(speed("a"), speed("b")) == "holds only if tasks like a count"
    assert verdict(speed("b"), speed("a"), speed("ab")) == (
        "holds only if tasks like a count; or tasks like a count (a)"
    )
    # what is not measured yet is no reason to say that it holds
    assert verdict(speed("a"), speed("a") | NOT_THERE) == (
        "holds only if tasks like a count; untested: speed elsewhere"
    )
    assert verdict(speed("b"), speed("a") | NOT_THERE) == (
        "does not hold; untested: speed elsewhere"
    )
    assert verdict(speed("a") | NOT_THERE) == "untested: speed elsewhere"


def test_a_claim_of_nobody():
    assert verdict(speed("b"), sources=()) == "no source found (measured anyway: does not hold)"
    assert verdict(sources=()) == "no source found"
    assert verdict(speed("e"), sources=()) == "no source found; untested: speed on e"


def test_a_threshold_from_above():
    below = {"at_least": None, "at_most": 2}
    assert verdict(speed("b", **below)) == "holds"
    assert verdict(speed("a", **below)) == "does not hold"
    assert verdict(speed("c", **below)) == "cannot tell at 4 seeds"
    # the threshold itself is on the side that holds
    assert verdict(speed("b", at_least=None, at_most=1.9)) == "holds"
    assert verdict(speed("a", at_least=2.2)) == "holds"


# -- what is read in a table ----------------------------------------------------------------------


def memory(**changed):
    block = {
        "what": "memory",
        "only_if": "the critic is separate",
        "short": "separate critic",
        "table": "bytes.csv",
        "rows": {"algo": "grpo"},
        "over": {"algo": "ppo", "critic": "separate"},
        "same": ["model"],
        "value": "bytes",
        "label": "{model}, critic {over_critic}",
        "at_most": 0.55,
    }
    return Evidence(**block | changed)


def test_ratios_of_exact_numbers_by_hand():
    half, more = rows_of(memory(), BYTES)
    assert (half.label, half.interval, half.side) == ("s, critic separate", (0.5,) * 3, "passes")
    assert (more.label, more.interval, more.side) == ("t, critic separate", (0.6,) * 3, "fails")
    assert half.n is None
    (shared,) = rows_of(memory(over={"critic": "shared"}), BYTES)
    assert shared.interval.estimate == 1


def test_a_process_that_was_stopped_has_no_number():
    assert [row.label for row in rows_of(memory(), BYTES.replace({"bytes": {60: math.nan}}))] == [
        "s, critic separate"
    ]


def test_yes_and_no_are_one_and_zero():
    fits = memory(value="fits", over=None, same=(), label="{model}", at_most=None, at_least=1)
    assert [row.side for row in rows_of(fits, BYTES)] == ["passes", "passes"]
    fits = memory(value="fits", over=None, same=(), label="{model}", rows={}, at_most=0)
    assert [row.interval.estimate for row in rows_of(fits, BYTES)] == [1, 0, 1, 1, 1]


def test_spread_over_the_seeds_by_hand():
    block = speed("a", value="success", over={"algo": "ppo"}, same=["env"], spread=True)
    (row,) = rows_of(Evidence(**block), SPEEDS)
    # 0.1 over 0.2, of three seeds each
    expected = deviation_ratio_interval(Spread(3, 0.1, 1.5), Spread(3, 0.2, 1.5))
    assert row.interval == expected and expected.estimate == 0.5
    assert row.side == "cannot tell"


def test_which_rows_count():
    def labels(**rows):
        table = SPEEDS.assign(algo=["grpo", "grpo (1b)", "grpo_paper", "rloo", "ppo"])
        return [row.label for row in rows_of(Evidence(**speed("a", rows=rows)), table)]

    assert labels(algo="grpo") == ["a"]
    assert labels(algo=["grpo", "grpo (*"]) == ["a", "b"]
    assert labels(ok=3) == ["a", "b"]
    assert labels(ok=[1, 4], algo="*o") == ["d"]
    assert labels(ok="3") == []


def test_rows_without_a_number_are_not_there():
    assert rows_of(Evidence(**speed("a", rows={"algo": "ppo"})), SPEEDS) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"value": "speed"}, r"no column 'speed' in bytes.csv, expected one of model, algo"),
        ({"rows": {"kind": "grpo"}}, "no column 'kind' in bytes.csv"),
        ({"over": {"kind": "ppo"}}, "no column 'kind' in bytes.csv"),
        ({"same": ["length"]}, "no column 'length' in bytes.csv"),
        ({"label": "{size}"}, r"label='\{size\}' names 'size', expected columns of bytes.csv"),
        ({"beside": "bound"}, "no column 'bound' in bytes.csv"),
        ({"spread": True}, "no column 'bytes_sd' in bytes.csv"),
    ],
)
def test_a_column_that_is_missing_is_named(changed, message):
    with pytest.raises(ValueError, match=message):
        rows_of(memory(**changed), BYTES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"at_least": 1}, "expected either at_least or at_most"),
        ({"at_most": None}, "expected either at_least or at_most"),
        ({"same": ()}, "expected over and same together"),
        ({"over": None}, "expected over and same together"),
        ({"over": None, "same": (), "spread": True}, "expected over and same together"),
    ],
)
def test_evidence_that_makes_no_sense(changed, message):
    with pytest.raises(ValueError, match=message):
        memory(**changed)


def test_a_ratio_of_intervals_is_refused():
    block = speed("a", over={"algo": "ppo"}, same=["env"], value="success")
    with pytest.raises(ValueError, match="expected a column that is a ratio itself"):
        rows_of(Evidence(**block), SPEEDS)


def test_entries_with_wrong_keys_are_refused():
    with pytest.raises(ValueError, match=r"claim 'fast': .*'holds'"):
        claim(speed("a", holds=2))
    with pytest.raises(ValueError, match=r"claim 'slow': 'sources'"):
        parse_claim("slow", {"says": "", "protocol": "", "evidence": []})
    with pytest.raises(ValueError, match=r"claim 'slow': .*'protocol'"):
        parse_claim("slow", {"says": "", "sources": [], "evidence": []})


# -- written --------------------------------------------------------------------------------------


def test_the_page_has_the_verdict_the_bound_and_the_table():
    judged = [judge(claim(speed("ab", beside="bound"), speed("a") | NOT_THERE), TABLES)]
    text = ledger.claims_page(judged)
    assert "**holds only if tasks like a count (a); untested: speed elsewhere**" in text
    assert "Sources: [someone](https://example.org)." in text
    (first,) = (line for line in text.splitlines() if line.startswith("|speed on a and b"))
    assert [cell.strip() for cell in first.split("|")[2:-1]] == [
        *("a", "2.50 [2.20, 2.80], bound 1.30", "3", "at least 2", "passes"),
        "[speed.csv](speed.csv)",
    ]
    (second,) = (line for line in text.splitlines() if line.startswith("|                |b"))
    assert " 1.50 [1.20, 1.90]|" in second  # it has no bound
    numbers = ledger.numbers(judged)
    assert csv(numbers).splitlines()[1].split(",")[5:9] == ["3", "2.5", "2.2", "2.8"]
    assert list(numbers["result"]) == ["passes", "fails", "untested"]
    assert list(numbers["low"])[:2] == [2.2, 1.2]
    assert math.isnan(numbers["estimate"][2])
    alone = ledger.numbers([judge(claim(sources=()), TABLES)])
    assert alone.to_dict("records") == [
        {"claim": "fast", "verdict": "no source found", "detail": ""}
    ]


# -- the committed one ----------------------------------------------------------------------------


def test_the_claims_of_the_issue_are_there():
    said = [
        line
        for line in claim_pages(Committed(ROOT))[Path("results/reference/claims.md")].splitlines()
        if line[:3] == "## "
    ]
    for words in ("halves", "50 %", "two to three", "1B", "93 %", "stable", "sum", "scale", "KL"):
        assert any(words in line for line in said), words
