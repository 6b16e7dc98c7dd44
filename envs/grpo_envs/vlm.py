"""GRPO-VLM-v0: look at a picture, read a question, choose the right one of the answers offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from grpo_envs.cards import Choice, letter, picture_card
from grpo_envs.easy_vqa import EasyVQASource
from grpo_envs.scalar import TaskEnv
from grpo_envs.synthetic import SyntheticSource
from grpo_envs.task import IntArray, Outcome, Split, State, Task, check_whole
from grpo_envs.vector import TaskVectorEnv

RIGHT, WRONG = 1.0, -0.5


class VLMTask(Task):
    """Multiple choice in one step, from one of two sources of problems. ``VLMEnv`` is its page.

    Raises:
        ValueError: for an unknown source, an option out of its range, or an option of
            ``synthetic`` given to ``easy_vqa``.
    """

    component_names = ("accuracy",)
    max_steps = 1

    def __init__(
        self,
        source: str = "easy_vqa",
        *,
        difficulty: float | None = None,
        n_choices: int | None = None,
        embed_dim: int | None = None,
    ) -> None:
        given = {"difficulty": difficulty, "n_choices": n_choices, "embed_dim": embed_dim}
        given = {name: value for name, value in given.items() if value is not None}
        self.source: EasyVQASource | SyntheticSource
        if source == "synthetic":
            options: dict[str, Any] = {"difficulty": 0.35, "n_choices": 4, "embed_dim": 128}
            self.source = SyntheticSource(**options | given)
        elif source != "easy_vqa":
            raise ValueError(f"source={source!r}: expected 'easy_vqa' or 'synthetic'")
        elif given:
            text = ", ".join(f"{name}={value}" for name, value in given.items())
            raise ValueError(f"{text}: only for source='synthetic', but source is 'easy_vqa'")
        else:
            self.source = EasyVQASource()
        n, bound = self.source.n_choices, self.source.bound
        self.observation_space = spaces.Box(-bound, bound, (self.source.embed_dim,), np.float32)
        self.action_space = spaces.Discrete(n)
        self.random_score = (RIGHT + WRONG * (n - 1)) / n
        best = self.source.bayes_accuracy
        self.oracle_score = RIGHT * best + WRONG * (1 - best)
        names = [letter(place) for place in range(n)]
        forms = ["{}", "({})", "{})", "{}."]
        self._place_of = {form.format(name): p for p, name in enumerate(names) for form in forms}

    # -- problems ---------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        return self.source.sample(rng, n, split)

    def problem_ids(self, split: Split) -> IntArray:
        return self.source.problem_ids(split)

    def check_ids(self, ids: Any) -> IntArray:
        return check_whole(ids, self.source.n_ids)

    def split_of(self, ids: IntArray) -> NDArray[np.str_]:
        return self.source.split_of(ids)

    # -- episodes ---------------------------------------------------------------------------------

    def start(self, ids: IntArray) -> State:
        """``choice`` (n,) is the action taken, -1 before."""
        return {"problem_id": ids.copy(), "choice": np.full(len(ids), -1, dtype=np.int64)}

    def observe(self, state: State) -> NDArray[np.float32]:
        return self.source.observe(state["problem_id"])

    def step(self, state: State, actions: IntArray) -> Outcome:
        state["choice"][:] = actions
        return self._judge(state["problem_id"], actions)

    def _judge(self, ids: IntArray, choices: IntArray) -> Outcome:
        success = (self.source.place(ids) == choices).astype(np.float64)
        reward = success * (RIGHT - WRONG) + WRONG
        return Outcome(reward, np.ones(len(ids), dtype=bool), success, {"accuracy": success.copy()})

    # -- the text view ----------------------------------------------------------------------------

    def prompts(self, ids: IntArray) -> list[str]:
        return [f"<image>\n{self._problem(i)}\nAnswer with the letter." for i in ids.tolist()]

    def score_texts(self, ids: IntArray, completions: Sequence[str]) -> Outcome:
        """A completion that is one of the letters, in any case, with white space around it, as in
        ``B``, ``(B)``, ``B)`` or ``B.``, makes that choice; any other text is wrong."""
        if len(completions) != len(ids):
            raise ValueError(f"{len(completions)} completions for {len(ids)} problems")
        return self._judge(ids, np.array([self._choice(text) for text in completions], np.int64))

    def _choice(self, completion: str) -> int:
        """The place that a completion names, -1 where it names none."""
        word = completion.strip()
        # outside ASCII there are letters whose upper case is one of ours
        return self._place_of.get(word.upper(), -1) if word.isascii() else -1

    def _problem(self, problem: int) -> str:
        answers = enumerate(self.source.answers(problem))
        lines = [f"Question: {self.source.question(problem)}"]
        return "\n".join(lines + [f"{letter(place)}) {answer}" for place, answer in answers])

    # -- pictures ---------------------------------------------------------------------------------

    def _verdict(self, problem: int, choice: int) -> str | None:
        """One line, once there is a choice."""
        if choice < 0:
            return None
        place = int(self.source.place(np.array([problem]))[0])
        if choice == place:
            return f"Right: {letter(place)}, reward {RIGHT:+}"
        return f"Wrong: {letter(choice)}, right is {letter(place)}, reward {WRONG:+}"

    def describe(self, state: State, i: int) -> str:
        problem, choice = int(state["problem_id"][i]), int(state["choice"][i])
        verdict = self._verdict(problem, choice)
        return self._problem(problem) + (f"\n{verdict}" if verdict else "")

    def draw(self, state: State, i: int) -> NDArray[np.uint8]:
        problem, choice = int(state["problem_id"][i]), int(state["choice"][i])
        rows = [Choice(answer) for answer in self.source.answers(problem)]
        if choice >= 0:
            place = int(self.source.place(np.array([problem]))[0])
            rows[choice] = Choice(rows[choice].text, "wrong", "chosen")
            note = "chosen, right" if choice == place else "right"
            rows[place] = Choice(rows[place].text, "right", note)
        split = self.split_of(np.array([problem]))[0]
        title = f"GRPO-VLM  {self.source.name}  {split} problem {problem}"
        question, picture = self.source.question(problem), self.source.picture(problem)
        return picture_card(title, picture, question, rows, self._verdict(problem, choice))


class VLMEnv(TaskEnv):
    """Look at a picture, read a question about it, choose the right one of the answers offered.

    ## Description

    Visual question answering as a verifiable one-step task, for methods that compare several
    rollouts of one problem. The agent sees frozen embeddings, not pixels: what has to be learned is
    how picture, question and answers belong together.

    | ``source`` | problems | what is known |
    |---|---|---|
    | ``easy_vqa`` (default) | 48,248 questions on 5,000 pictures | measured baselines |
    | ``synthetic`` | 2**53, computed from the id | the best policy's accuracy, exactly |

    ``easy_vqa`` is the data set of the package of that name (MIT): each picture shows one coloured
    shape; the questions ask what shape, what colour, or whether something is (not) there.
    ``synthetic`` asks which of the candidate concepts a noisy query shows.

    The four answers of an ``easy_vqa`` problem never change. The three wrong ones are of the right
    one's kind as far as there are any, so that the kind of the question gives little away: yes/no
    questions offer the other of the two and two more answers; shapes the two other shapes and a
    colour; colours three other colours. Share of right answers on the test questions
    (``scripts/embed_easy_vqa.py --check`` measures it):

    | | all | yes/no | shape | colour |
    |---|---|---|---|---|
    | uniform guess | 0.250 | 0.250 | 0.250 | 0.250 |
    | guess among the answers of the right kind | 0.445 | 0.500 | 0.333 | 0.250 |
    | best guess from the question without the picture | 0.685 | 0.825 | 0.333 | 0.249 |
    | supervised network, 128-64-64-4 | 0.973 | 0.977 | 0.990 | 0.934 |
    | supervised network, 128-256-256-4 | 0.983 | 0.988 | 0.992 | 0.947 |

    A ``synthetic`` query is R c + ``difficulty`` * noise for the right concept c, one orthonormal
    map R in all problems and independent standard normal noise. With n answers and sigma =
    ``difficulty`` the best policy is right with probability ∫ phi(x) Phi(x + 1/sigma)^(n-1) dx:

    | ``difficulty``, n = 4 | 0 | 0.25 | 0.35 | 0.5 | 0.75 | 1 | 2 |
    |---|---|---|---|---|---|---|---|
    | best accuracy | 1 | 0.994 | 0.945 | 0.823 | 0.654 | 0.552 | 0.393 |

    ## Action Space

    ``Discrete(4)`` (``Discrete(n_choices)`` for ``synthetic``): the answer chosen, 0 for A.

    ## Observation Space

    ``Box`` of ``float32``, about unit variance in each ``easy_vqa`` coordinate, which lies in
    [-5, 5].

    | ``easy_vqa``, shape (128,) | |
    |---|---|
    | 0 - 63 | picture: EfficientNet-Lite0 features, whitened |
    | 64 - 95 | question: bag of words |
    | 96 - 127 | answers A to D, 8 each: a fixed random direction for every possible answer |

    | ``synthetic``, shape (``embed_dim``,); k = ``embed_dim // (n_choices + 1)`` | |
    |---|---|
    | the first ``embed_dim - n_choices * k`` | query |
    | k for each answer | its concept, a unit vector |

    ## Rewards

    | | reward |
    |---|---|
    | right answer | +1.0 |
    | wrong answer | -0.5 |

    The expected reward of uniform guessing (``task.random_score``) is -0.125 with four answers;
    that of the best policy (``task.oracle_score``) is 1 for ``easy_vqa`` and follows from the
    best accuracy for ``synthetic``: 0.918 at the default difficulty.

    As text (``task.prompts``, ``task.score_texts``): the prompt holds ``<image>`` where the picture
    goes, the question and the lettered answers. ``B``, ``(B)``, ``B)`` and ``B.``, in any case,
    choose B; any other completion is wrong.

    ## Starting State

    A problem drawn uniformly from the split, or ``reset(options={"problem_id": k})``. ``info`` has
    ``problem_id``, ``is_success`` and ``accuracy`` as floats.

    | ``split`` | ``easy_vqa``: questions, pictures | ``synthetic``: ids |
    |---|---|---|
    | ``train`` | 34,747, 3,600 | 4000 to 2**53 - 1 |
    | ``validation`` | 1,942, 200 of the package's training pictures | 0 to 999 |
    | ``tuning`` | 1,886, 200 of the package's training pictures | 1000 to 1999 |
    | ``test`` | 9,673, the package's 1,000 test pictures | 2000 to 3999 |

    No two splits share a picture. ``easy_vqa`` ids are 0 to 48247, in the order of the package, its
    training questions first. In each split the right answer stands equally often (to within 1) in
    each of the four places.

    ## Episode End

    ``terminated`` after one step, always; never ``truncated``.

    ## Arguments

    | | default | |
    |---|---|---|
    | ``source`` | ``"easy_vqa"`` | or ``"synthetic"`` |
    | ``difficulty`` | 0.35 | standard deviation of the noise, at least 0; ``synthetic`` only |
    | ``n_choices`` | 4 | answers offered, at least 2; ``synthetic`` only |
    | ``embed_dim`` | 128 | at least ``n_choices * (n_choices + 1)``; ``synthetic`` only |
    | ``split`` | ``"train"`` | ``"validation"``, ``"test"``, ``"tuning"`` |
    | ``render_mode`` | None | ``"ansi"`` (text), ``"rgb_array"`` (a card) |

    ## Vectorized environment

    ``gymnasium.make_vec("GRPO-VLM-v0", num_envs=1024)`` makes ``VLMVectorEnv``, a few array
    operations a step for any number of sub-environments. ``reset`` takes an array of problem ids.

    | argument | default | |
    |---|---|---|
    | ``num_envs`` | 1 | |
    | ``autoreset_mode`` | ``SAME_STEP`` | ``NEXT_STEP`` idles every second step; not in torch |
    | ``device`` | None | ``"cpu"``, ``"cuda"``, ``"auto"``: the torch view of ``easy_vqa`` |

    The torch view gives and takes tensors on the device: problems are drawn and answers judged
    there, and neither ``step`` nor ``reset`` without ids takes anything to the host. A seed draws
    other problems than in numpy, as uniformly; an action out of range is a wrong answer.

    ## Version History

    | | |
    |---|---|
    | v0 | first version |
    """

    task_class = VLMTask


class VLMVectorEnv(TaskVectorEnv):
    """``VLMEnv``, natively vectorised, with the arguments of ``VLMEnv`` and ``TaskVectorEnv``."""

    task_class = VLMTask


def make_vector_env(
    num_envs: int = 1, *, device: Any = None, **options: Any
) -> VectorEnv[Any, Any, Any]:
    """What ``gymnasium.make_vec`` calls: ``VLMVectorEnv`` in numpy, or with a ``device`` its torch
    view. Raises ModuleNotFoundError where that needs torch and there is none."""
    if device is None:
        return VLMVectorEnv(num_envs, **options)
    try:
        from grpo_envs.torch_vlm import TorchVLMVectorEnv
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"device={device!r} needs torch: install it") from error
    return TorchVLMVectorEnv(num_envs, device=device, **options)
