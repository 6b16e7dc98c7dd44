"""Tables of language models: tokens, phases, critics, and several models in one folder."""

import pytest
from support.run_records import cells, record, values

from grpo_bench.report import display, latex, markdown
from grpo_bench.report.folder import make_tables

ENV = "arithmetic_text"


def model(name="135m", rank=0, alpha=32):
    lora = {"rank": rank, "alpha": alpha, "target_modules": "all-linear"}
    return {"name": name, "source": f"random:{name}", "dtype": "bfloat16", "lora": lora}


def last(rate, critic_seconds=None):
    """8 seconds of training, 2 + 0.5 + 0.5 + 5, beside those of the critic."""
    logged = {k: v for k, v in values(0.5, rate, 3e9).items() if k != "time/rollout_seconds"}
    logged |= {"time/generation_seconds": 2.0, "time/scoring_seconds": 0.5}
    logged |= {"time/logprobs_seconds": 0.5, "time/update_seconds": 5.0}
    logged |= {"eval/test_sampled/success": 0.25}
    logged |= {"memory/policy_bytes": 270e6, "memory/optimizer_bytes": 1.08e9}
    return logged if critic_seconds is None else logged | {"time/critic_seconds": critic_seconds}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """GRPO and three critics of PPO on one model, seeds 1 and 2."""
    results = tmp_path_factory.mktemp("lm")
    for seed in (1, 2):
        record(results, "grpo", seed, last(300), env=ENV, model=model(), kind="grpo")
        for algo, critic, rate, seconds in [
            ("ppo", "separate", 200, 8.0),
            ("ppo_lora", "lora", 240, 8 / 3),
            ("ppo_shared", "shared", 280, None),
        ]:
            shown = last(rate, seconds)
            record(results, algo, seed, shown, env=ENV, model=model(), kind="ppo", critic=critic)
    return results


def test_the_critics_of_ppo_are_in_order(folder):
    tables = make_tables(folder)
    assert list(tables.pop("trades")["critic"]) == ["separate", "shared trunk", "LoRA"]
    for table in tables.values():
        algos = [algo for algo in table["algo"] if algo != "ppo"]
        assert algos[:3] == ["grpo", "ppo_shared", "ppo_lora"]
        assert algos == algos[:3] * (len(algos) // 3)  # once for each budget or score
    assert list(tables["speed"]["algo"])[1] == "ppo"


def test_speed_of_tokens_by_hand(folder):
    tables = make_tables(folder)
    grpo = cells(tables, "speed", ENV, "grpo")
    assert (grpo["tokens/s"], grpo["ratio to PPO"]) == ("300", "1.50")
    assert [grpo[f"{part} s"] for part in ("generation", "scoring", "reference", "update")] == [
        *("2.00", "0.500", "0.500", "5.00")
    ]
    assert not {"k transitions/s", "rollout s"} & set(grpo)
    # PPO's critic takes 8 of 16 seconds, its LoRA critic 8/3 of 32/3: 1 / (1 - 0.5), 1 / (1 - 0.25)
    assert (grpo["critic share"], grpo["bound"]) == ("–", "2.00")
    ppo, lora = (cells(tables, "speed", ENV, algo) for algo in ("ppo", "ppo_lora"))
    assert (ppo["critic s"], ppo["critic share"], ppo["bound"]) == ("8.00", "0.50", "–")
    assert (lora["critic share"], lora["bound"]) == ("0.25", "–")  # it has one itself
    beside = cells(make_tables(folder, "ppo_lora"), "speed", ENV, "grpo")
    assert (beside["ratio to ppo_lora"], beside["bound"]) == ("1.25", "1.33")
    shared = make_tables(folder, "ppo_shared")["speed"]
    assert shared["bound"].isna().all()  # no critic's seconds were recorded


def test_a_row_says_which_of_its_runs_had_several_processes(tmp_path):
    """torchrun changes no setting, so they stand in one row."""
    for seed, processes in ((1, None), (2, 2), (3, 4)):
        shown = last(300 * (processes or 1))
        record(tmp_path, "grpo", seed, shown, env=ENV, model=model(), processes=processes)
    assert make_tables(tmp_path)["speed"].attrs["footnotes"] == [
        f"Trained by 2 or 4 processes together: {ENV}, smoke, grpo: 2 of 3 runs; the memory "
        "shown is that of one process"
    ]


def test_words_and_units_are_those_of_language_models(folder):
    for name, table in make_tables(folder).items():
        shown = display(name, table)
        text = markdown(shown) + latex(shown, name)
        assert "transition" not in text and "{" not in "".join(shown.columns)
    speed, memory = (make_tables(folder)[name] for name in ("speed", "memory"))
    assert "tokens/s: tokens per second of training (generation, scoring," in speed.attrs["reading"]
    assert cells({"memory": memory}, "memory", ENV, "grpo")["policy MB"] == "270"
    assert cells(make_tables(folder), "accuracy", ENV, "grpo")["k tokens"] == "2.05"
    assert cells(make_tables(folder), "accuracy", ENV, "grpo")["sampled success"] == "0.250"


def test_an_environment_beside_a_language_model(folder, tmp_path):
    record(tmp_path, "grpo", 1, values(0.5, 2000, 4e8), env="vlm")
    record(tmp_path, "grpo", 1, last(300), env=ENV, model=model())
    tables = make_tables(tmp_path)
    tokens, steps = (cells(tables, "speed", env, "grpo") for env in (ENV, "vlm"))
    assert (tokens["tokens/s"], tokens["k transitions/s"]) == ("300", "–")
    assert (steps["tokens/s"], steps["k transitions/s"]) == ("–", "2.00")
    reading = tables["speed"].attrs["reading"]
    assert reading.startswith("k transitions/s or tokens/s: thousand transitions or tokens per")


@pytest.mark.parametrize(
    ("models", "labels"),
    [
        ([model(), model("1b")], ["grpo (135m)", "grpo (1b)"]),
        ([model(), model(rank=16)], ["grpo (LoRA 16)", "grpo (full)"]),
        (
            [model(), model("1b", rank=8, alpha=16)],
            ["grpo (135m, full)", "grpo (1b, LoRA 8)"],
        ),
        # what name and rank do not tell stands there as it is
        (
            [model(rank=8), model(rank=8, alpha=16), model("1b")],
            [
                "grpo (135m, LoRA 8, model.lora.alpha=16)",
                "grpo (135m, LoRA 8, model.lora.alpha=32)",
                "grpo (1b, full, model.lora.alpha=32)",
            ],
        ),
    ],
)
def test_models_make_rows_of_their_own(tmp_path, models, labels):
    for settings in models:
        record(tmp_path, "grpo", 1, last(300), env=ENV, model=settings)
        record(tmp_path, "ppo", 1, last(200), env=ENV, model=settings)
    table = make_tables(tmp_path)["speed"]
    assert [algo for algo in table["algo"] if algo.startswith("grpo")] == labels
    grpo = table[table["algo"].str.startswith("grpo")]
    assert list(grpo["ratio"]) == pytest.approx([1.5] * len(models))  # each beside its own
