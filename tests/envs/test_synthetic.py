"""The synthetic source: its hash, its geometry, its known difficulty."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from grpo_envs.hashing import below, counters, draws, mix, normals
from grpo_envs.task import MAX_ID, SPLITS
from grpo_envs.vlm import VLMTask
from grpo_envs.vlm.synthetic import SyntheticSource, _orthonormal

IDS = np.arange(20_000) * 7_919 + 123


def test_splitmix64_has_its_published_values():
    # the generator's first outputs from seed 0; Vigna's splitmix64.c prints the same
    assert [hex(v) for v in mix(counters(3))] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_draws_are_uniform_and_normal():
    bits = draws(IDS, counters(6))
    counts = np.bincount(below(bits[:, 3], 7))
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-4
    values = normals(bits)
    assert values.shape == (20_000, 12)
    assert stats.kstest(values.ravel(), "norm").pvalue > 1e-4
    correlation = np.corrcoef(values.T) - np.eye(12)
    assert np.abs(correlation).max() < 5 / math.sqrt(20_000)
    assert np.abs(values).max() < 6


@pytest.mark.parametrize(("rows", "columns"), [(25, 25), (28, 25), (3, 2)])
def test_maps_are_orthonormal(rows, columns):
    matrix = _orthonormal(rows, columns, seed=1)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(columns), atol=1e-12)


@pytest.mark.parametrize(
    ("n", "dim", "k", "query"), [(4, 128, 25, 28), (2, 6, 2, 2), (5, 31, 5, 6)]
)
def test_blocks_are_different_concepts_and_the_query_shows_the_right_one(n, dim, k, query):
    source = SyntheticSource(0.0, n, dim)
    assert (source.k, source.query_dim) == (k, query)
    candidates, place = source.candidates(IDS), source.place(IDS)
    assert all(len(set(row)) == n for row in candidates[:500].tolist())
    assert candidates.min() == 0
    assert candidates.max() == k - 1
    assert stats.chisquare(np.bincount(place, minlength=n)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(candidates[:, -1], minlength=k)).pvalue > 1e-4
    observations = source.observe(IDS)
    assert observations.shape == (len(IDS), dim)
    blocks = observations[:, query:].reshape(-1, n, k)
    assert np.abs(blocks @ blocks.transpose(0, 2, 1) - np.eye(n)).max() < 1e-5
    right = blocks[np.arange(len(IDS)), place]
    linear, *_ = np.linalg.lstsq(right, observations[:, :query], rcond=None)  # R, recovered
    np.testing.assert_allclose(right @ linear, observations[:, :query], atol=1e-5)
    np.testing.assert_allclose(linear @ linear.T, np.eye(k), atol=1e-5)


def test_a_problem_is_the_same_in_every_batch():
    source = SyntheticSource(0.7, 4, 130)
    together = source.observe(IDS[:300])
    for i in (0, 1, 7, 299):
        np.testing.assert_array_equal(source.observe(IDS[i : i + 1])[0], together[i])
    np.testing.assert_array_equal(source.observe(IDS[:300][::-1].copy()), together[::-1])


@pytest.mark.parametrize(
    ("difficulty", "n", "dim"), [(0.35, 4, 128), (1.0, 4, 128), (0.6, 2, 16), (0.8, 7, 60)]
)
def test_the_best_policy_is_as_good_as_the_formula_says(difficulty, n, dim):
    source = SyntheticSource(difficulty, n, dim)
    expected, _ = integrate.quad(
        lambda x: stats.norm.pdf(x) * stats.norm.cdf(x + 1 / difficulty) ** (n - 1), -12, 12
    )
    assert source.bayes_accuracy == pytest.approx(expected, abs=1e-8)
    observations = source.observe(IDS)
    query = observations[:, : source.query_dim]
    clean = source._queries[source.candidates(IDS)]  # (N, n, query_dim): R c of each candidate
    best = np.einsum("nd,njd->nj", query, clean).argmax(axis=1)
    error = math.sqrt(expected * (1 - expected) / len(IDS))
    assert abs((best == source.place(IDS)).mean() - expected) < 4 * error
    assert np.abs(observations).max() <= source.bound


def test_known_scores():
    easy = VLMTask("synthetic", difficulty=0, n_choices=2, embed_dim=6)
    assert easy.oracle_score == 1.0
    assert easy.random_score == (1 - 0.5) / 2
    hopeless = VLMTask("synthetic", difficulty=1e9)
    assert hopeless.oracle_score == pytest.approx(hopeless.random_score, abs=1e-6)
    assert VLMTask("synthetic", difficulty=1e-320).oracle_score == pytest.approx(1.0, abs=1e-12)


def test_splits_share_no_problem():
    source = SyntheticSource(0.35, 4, 128)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(source.problem_ids("validation"), np.arange(1000))
    np.testing.assert_array_equal(source.problem_ids("tuning"), np.arange(1000, 2000))
    np.testing.assert_array_equal(source.problem_ids("test"), np.arange(2000, 4000))
    for split in SPLITS:
        drawn = np.concatenate([source.sample(rng, 1000, split), source.problem_ids(split)])
        assert set(source.split_of(drawn)) == {split}
    assert source.sample(rng, 1000, "train").max() < MAX_ID


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"difficulty": -0.1}, "difficulty=-0.1: expected a finite number, at least 0"),
        ({"difficulty": float("nan")}, "difficulty=nan"),
        ({"difficulty": float("inf")}, "difficulty=inf"),
        ({"n_choices": 1}, "n_choices=1: expected at least 2"),
        ({"n_choices": 4, "embed_dim": 19}, "embed_dim=19 is too small for n_choices=4.*20"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        VLMTask("synthetic", **options)
