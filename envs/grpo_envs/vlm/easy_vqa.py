"""The easy-VQA problems of GRPO-VLM: a real data set as embeddings (see ``data/README.md``).

A process reads the tables once; all environments share them, read-only.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from grpo_envs.task import SPLITS, IntArray, Split

PICTURES_PER_CHUNK = 100
BLOCK = 32  # floats in a block; an observation has four blocks


class Tables(NamedTuple):
    """The data file, arranged for lookups. Q = 48,248 questions on 5,000 images."""

    blocks: NDArray[np.float32]  # (B, 32) two per image, one per question text, one per answers
    block_of: IntArray  # (Q, 4) the four blocks of a problem's observation
    image: IntArray  # (Q,)
    text: IntArray  # (Q,) into question_texts
    choices: NDArray[np.uint8]  # (Q, 4) into answer_texts
    place: IntArray  # (Q,) of the right answer among the choices
    split: NDArray[np.uint8]  # (Q,) into SPLITS
    ids: dict[Split, IntArray]
    question_texts: list[str]
    answer_texts: list[str]


def _open(name: str) -> BinaryIO:
    return cast(BinaryIO, (files("grpo_envs.data") / name).open("rb"))


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Read ``easy_vqa.npz``. ``scripts/embed_easy_vqa.py`` documents its layout."""
    with _open("easy_vqa.npz") as file, np.load(file, allow_pickle=False) as data:
        d: dict[str, NDArray[Any]] = dict(data)
    image, text = d["image"].astype(np.int64), d["question"].astype(np.int64)
    # one block for each ordered choice of answers that occurs: few of the possible ones
    code = d["choices"].astype(np.int64) @ 16 ** np.arange(4)
    codes, answers = np.unique(code, return_inverse=True)
    rows = codes[:, None] // 16 ** np.arange(4) % 16
    pieces = [
        d["image_embedding"].reshape(-1, BLOCK),
        d["question_embedding"],
        d["answer_embedding"][rows].reshape(-1, BLOCK),
    ]
    start = np.cumsum([0] + [len(piece) for piece in pieces])
    columns = [2 * image, 2 * image + 1, start[1] + text, start[2] + answers]
    split = d["image_split"][image]
    made = Tables(
        blocks=np.concatenate(pieces).astype(np.float32),
        block_of=np.stack(columns, axis=1),
        image=image,
        text=text,
        choices=d["choices"],
        place=d["place"].astype(np.int64),
        split=split,
        ids={name: np.flatnonzero(split == i) for i, name in enumerate(SPLITS)},
        question_texts=d["question_text"].tolist(),
        answer_texts=d["answer_text"].tolist(),
    )
    for array in [*made, *made.ids.values()]:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return made


@lru_cache(maxsize=8)
def _chunk(number: int) -> NDArray[np.uint8]:
    """The 100 pictures from 100 * number on, (100, 64, 64, 3)."""
    with _open("pictures.npz") as file, np.load(file, allow_pickle=False) as data:
        return cast(NDArray[np.uint8], data[f"{number:02d}"])


class EasyVQASource:
    """48,248 questions on 5,000 pictures, each with one right and three wrong answers."""

    name = "easy_vqa"
    n_choices = 4
    embed_dim = 4 * BLOCK
    bayes_accuracy = 1.0  # by construction: the pictures decide every question

    def __init__(self) -> None:
        self.tables = tables()
        self.n_ids = len(self.tables.image)
        self.bound = float(np.ceil(np.abs(self.tables.blocks).max()))

    def __reduce__(self) -> tuple[Any, ...]:
        return EasyVQASource, ()  # a copy reads the tables itself: no megabytes in the pickle

    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        """n ids, (n,), uniform over the questions of the split."""
        ids = self.tables.ids[split]
        return ids.take(rng.integers(len(ids), size=n))

    def problem_ids(self, split: Split) -> IntArray:
        """All ids of the split, in the order of the package."""
        return self.tables.ids[split].copy()

    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        """The split of each id, (n,)."""
        return np.array(SPLITS)[self.tables.split[ids]]

    def place(self, ids: IntArray) -> IntArray:
        """The position of the right answer, (n,)."""
        return self.tables.place.take(ids)

    def observe(self, ids: IntArray) -> NDArray[np.float32]:
        """Image 64, question 32, answers 4 x 8: (n, 128), in two lookups."""
        observations = np.empty((len(ids), 4, BLOCK), dtype=np.float32)
        # all indices are in range: "clip" avoids the extra buffer of "raise"
        blocks = self.tables.block_of.take(ids, axis=0)
        self.tables.blocks.take(blocks, axis=0, out=observations, mode="clip")
        return observations.reshape(len(ids), -1)

    def question(self, problem: int) -> str:
        """The text of the question."""
        return self.tables.question_texts[self.tables.text[problem]]

    def answers(self, problem: int) -> list[str]:
        """The answers offered, in order."""
        return [self.tables.answer_texts[a] for a in self.tables.choices[problem]]

    def picture(self, problem: int) -> NDArray[np.uint8]:
        """The picture, (64, 64, 3). The disk is read when needed, a hundred pictures at a time."""
        number, row = divmod(int(self.tables.image[problem]), PICTURES_PER_CHUNK)
        return _chunk(number)[row]
