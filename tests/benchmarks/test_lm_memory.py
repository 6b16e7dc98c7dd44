"""benchmarks/lm_memory.py: its rows are configurations, its table is kept, its limit limits."""

import sys

import pytest

pytest.importorskip("transformers")

MEASURED = {"predicted": 1.1, "measured": 1.0, "error": 10.0, "moment": "update", "verdict": "fits"}


@pytest.fixture
def bench(load):
    return load("lm_memory")


def test_rows_are_configurations(bench):
    found = list(bench.rows(("135m", "1b")))
    assert len(set(found)) == len(found)
    for row in found:
        config = row.config()
        assert config.model.source == row.model
        assert config.env.train.episodes == row.prompts * row.group_size
        assert (config.model.lora.rank > 0) == ("LoRA" in row.trained)
        assert (config.algo.options.get("kl") == "k3") == ("KL" in row.algo)


def test_rows_that_are_there_are_kept(bench, monkeypatch, tmp_path):
    measured = []

    def measure(row, limit, device):
        measured.append(row)
        return MEASURED

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "check_limit", lambda limit: None)
    bench.main(["--quick", "--out", str(tmp_path)])
    n = len(measured)
    assert n == len(set(measured)) > 4
    bench.main(["--quick", "--out", str(tmp_path)])
    assert len(measured) == n
    bench.main(["--quick", "--out", str(tmp_path), "--again"])
    assert len(measured) == 2 * n
    assert (tmp_path / "lm_memory.md").read_text().count("fits") >= n
    targets = (tmp_path / "lm_memory_targets.csv").read_text()
    assert "largest error" in targets
    assert "met" in targets


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux")
def test_a_limit_that_limits(bench):
    bench.check_limit(2 * 2**30)
