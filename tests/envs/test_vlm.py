"""GRPO-VLM: the shipped data, one problem in three views, bad input."""

from importlib.resources import files

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.task import SPLITS
from grpo_envs.vlm import VLMEnv, VLMTask, VLMVectorEnv

EASY, SYNTHETIC = VLMTask(), VLMTask("synthetic")
TASKS = {"easy_vqa": EASY, "synthetic": SYNTHETIC}
ALL = np.arange(EASY.source.n_ids)
COLOURS = {
    "black": (0, 0, 0), "blue": (0, 0, 255), "brown": (165, 42, 42), "gray": (128, 128, 128),
    "green": (0, 255, 0), "red": (255, 0, 0), "teal": (0, 128, 128), "yellow": (255, 255, 0),
}  # fmt: skip
SHAPES = {"circle", "rectangle", "triangle"}


def right_answer(problem: int) -> str:
    return EASY.source.answers(problem)[EASY.source.place(np.array([problem]))[0]]


def kind(answer: str) -> str:
    return "yes/no" if answer in {"yes", "no"} else "shape" if answer in SHAPES else "colour"


# -- the shipped data -------------------------------------------------------------------------


def test_the_data_is_small_and_carries_its_licences():
    folder = files("grpo_envs.data")
    names = ["easy_vqa.npz", "pictures.npz", "LICENSE-easy-vqa", "LICENSE-efficientnet"]
    assert sum(len((folder / name).read_bytes()) for name in names) < 2.5e6


def test_splits_are_disjoint_by_picture_and_complete():
    ids = {split: EASY.problem_ids(split) for split in SPLITS}
    assert {split: len(i) for split, i in ids.items()} == {
        "train": 34_747, "validation": 1_942, "test": 9_673, "tuning": 1_886,
    }  # fmt: skip
    np.testing.assert_array_equal(np.sort(np.concatenate(list(ids.values()))), ALL)
    images = {split: set(EASY.source.tables.image[i]) for split, i in ids.items()}
    assert [len(images[split]) for split in SPLITS] == [3600, 200, 1000, 200]
    assert len(set.union(*images.values())) == 5000
    assert images["test"] == set(range(4000, 5000))
    assert ids["test"].min() == 38_575  # the package's test questions and no others
    for split in SPLITS:
        assert set(EASY.split_of(ids[split])) == {split}
        drawn = EASY.sample(np.random.default_rng(0), 500, split)
        assert np.isin(drawn, ids[split]).all()


@pytest.mark.parametrize("split", SPLITS)
def test_each_place_is_right_equally_often(split):
    counts = np.bincount(EASY.source.place(EASY.problem_ids(split)), minlength=4)
    assert counts.max() - counts.min() <= 1


def test_distractors_are_of_the_answers_kind_where_possible():
    for problem in ALL[::3].tolist():
        answers, right = EASY.source.answers(problem), right_answer(problem)
        assert len(set(answers)) == 4
        kinds = [kind(answer) for answer in answers]
        expected = {"yes/no": 2, "shape": 3, "colour": 4}[kind(right)]
        assert kinds.count(kind(right)) == expected
        assert kind(right) == "yes/no" or "yes/no" not in kinds


def test_the_pictures_are_those_of_the_questions():
    checked = 0
    for problem in np.random.default_rng(0).permutation(ALL)[:1500].tolist():
        if (answer := right_answer(problem)) in COLOURS:
            pixels = EASY.source.picture(problem).reshape(-1, 3)
            colours, counts = np.unique(pixels, axis=0, return_counts=True)
            second = colours[np.argsort(counts)[-2]]  # the background is the commonest
            assert tuple(second) == COLOURS[answer], problem
            checked += 1
    assert checked > 100


def test_an_observation_is_picture_question_and_answers():
    tables, problem = EASY.source.tables, 20_000
    with np.load((files("grpo_envs.data") / "easy_vqa.npz").open("rb")) as data:
        image = data["image_embedding"][tables.image[problem]]
        question = data["question_embedding"][tables.text[problem]]
        answers = data["answer_embedding"][tables.choices[problem]]
    expected = np.concatenate([image, question, answers.ravel()]).astype(np.float32)
    np.testing.assert_array_equal(EASY.source.observe(np.array([problem]))[0], expected)
    everything = EASY.source.observe(ALL)
    for block in np.split(everything, [64, 96], axis=1):
        assert block.std(axis=0).mean() == pytest.approx(1, abs=0.15)
    assert np.abs(everything).max() <= EASY.source.bound == 5


# -- one problem, three views -----------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(TASKS)), st.integers(0, 48_247), st.integers(0, 3))
def test_scalar_vector_and_text_give_the_same_reward(source, problem, action):
    scalar, vector = VLMEnv(source=source), VLMVectorEnv(2, source=source)
    first, info = scalar.reset(options={"problem_id": problem})
    firsts, _ = vector.reset(options={"problem_id": [problem, problem]})
    np.testing.assert_array_equal(first, firsts[0])
    np.testing.assert_array_equal(first, firsts[1])
    _, reward, terminated, truncated, info = scalar.step(action)
    _, rewards, _, _, infos = vector.step(np.array([action, action]))
    text = TASKS[source].score_texts(np.array([problem]), [f" ({'abcd'[action]})\n"])
    assert reward == rewards[0] == rewards[1] == text.reward[0]
    assert reward == (1.0 if info["accuracy"] else -0.5)
    assert info["accuracy"] == info["is_success"] == infos["final_info"]["accuracy"][0]
    assert (terminated, truncated) == (True, False)
    assert type(reward) is type(info["problem_id"]) is float


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_one_choice_is_right_and_guessing_has_the_stated_score(task):
    ids = task.problem_ids("validation")
    rewards = [task.step(task.start(ids), np.full(len(ids), a)).reward for a in range(4)]
    assert (np.sort(rewards, axis=0).T == [-0.5, -0.5, -0.5, 1.0]).all()
    assert np.mean(rewards) == task.random_score == -0.125
    assert task.normalised(task.oracle_score) == 1


def test_the_prompt():
    assert EASY.prompts(np.array([0])) == [
        "<image>\nQuestion: what is the blue shape?\n"
        "A) rectangle\nB) brown\nC) triangle\nD) circle\nAnswer with the letter."
    ]
    assert "concept" in SYNTHETIC.prompts(np.array([5]))[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [("A", 0), ("b", 1), (" c \n", 2), ("(D)", 3), ("d)", 3), ("B.", 1), ("(a)", 0),
     ("", -1), ("E", -1), ("(A", -1), ("(A).", -1), ("A B", -1), ("AA", -1), ("A or B", -1),
     ("rectangle", -1), ("Ａ", -1), ("ａ", -1), ("\ud800", -1), ("A" * 10**6, -1), ("\x00", -1)],
)  # fmt: skip
def test_what_a_completion_chooses(text, place):
    outcome = EASY.score_texts(ALL[:1], [text])  # the right answer of problem 0 is A
    assert EASY._choice(text) == place
    assert outcome.reward[0] == (1.0 if place == 0 else -0.5)


def test_letters_stop_where_the_answers_do():
    two = VLMTask("synthetic", n_choices=2)
    many = VLMTask("synthetic", n_choices=30, embed_dim=1000)
    assert [two._choice(text) for text in "ABC"] == [0, 1, -1]
    assert [many._choice(text) for text in ("z", "aD", "AE")] == [25, 29, -1]


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_no_completion_raises(text):
    assert EASY.score_texts(ALL[:1], [text]).reward[0] in (1.0, -0.5)


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 7.5, -1], "problem id 7.5: expected whole numbers from 0 to 48247"),
        ([0, 48_248], "problem id 48248"),
        ([-1], "problem id -1"),
        ([0.0, float("nan")], "problem id nan"),
        ([float("inf")], "problem id inf"),
        (["7"], "problem id '7'"),
        ([1, None], "problem id None"),
        ([1, 2**70], f"problem id {2**70}"),
        ([True], "problem id True of type bool"),
        (7, r"shape \(\)"),
        ([[7]], r"shape \(1, 1\)"),
    ],
)
def test_bad_ids(ids, message):
    with pytest.raises(ValueError, match=message):
        EASY.check_ids(ids)


def test_ids_may_be_whole_floats_as_in_info():
    ids = EASY.check_ids(np.array([0.0, 48_247.0]))
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, 48_247]
    assert SYNTHETIC.check_ids([float(2**53 - 1)]).tolist() == [2**53 - 1]
    with pytest.raises(ValueError, match=f"problem id {2**53}"):
        SYNTHETIC.check_ids([2**53])
    assert EASY.check_ids([]).shape == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "coco"}, "source='coco': expected 'easy_vqa' or 'synthetic'"),
        ({"difficulty": 0.5, "n_choices": 4}, "difficulty=0.5, n_choices=4: only for source='synt"),
        ({"split": "dev"}, "split='dev'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        gym.make("GRPO-VLM-v0", **options)


def test_one_completion_for_each_problem():
    with pytest.raises(ValueError, match="1 completions for 2 problems"):
        EASY.score_texts(ALL[:2], ["A"])
