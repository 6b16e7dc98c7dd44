"""The environments of ``VLMTask``. ``VLMEnv`` documents GRPO-VLM-v0."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from grpo_envs.scalar import TaskEnv
from grpo_envs.vector import TaskVectorEnv
from grpo_envs.vlm.task import VLMTask


class VLMEnv(TaskEnv):
    """Look at a picture, read a question about it, choose the right answer.

    ## Description

    Visual question answering in one step, for methods that compare several rollouts of one problem.
    The agent sees frozen embeddings, not pixels. It has to learn how picture, question and answers
    are related.

    | ``source`` | problems | known |
    |---|---|---|
    | ``easy_vqa`` (default) | 48,248 questions on 5,000 pictures | measured baselines |
    | ``synthetic`` | 2**53, computed from the id | the best policy's exact accuracy |

    ``easy_vqa`` is the data set of the package of that name (MIT). Each picture shows one coloured
    shape. The questions ask for the shape, for the colour, or whether something is (not) in the
    picture. ``synthetic`` asks which of the candidate concepts a noisy query shows.

    The four answers of an ``easy_vqa`` problem never change. Wrong answers are of the same kind as
    the right one where possible, so the question alone reveals little: yes/no questions offer yes,
    no and two other answers, shapes all three shapes and a colour, colours four colours. Share of
    right answers on the test questions (``scripts/embed_easy_vqa.py --check`` measures it):

    | | all | yes/no | shape | colour |
    |---|---|---|---|---|
    | uniform guess | 0.250 | 0.250 | 0.250 | 0.250 |
    | guess among the answers of the right kind | 0.445 | 0.500 | 0.333 | 0.250 |
    | best guess from the question without the picture | 0.685 | 0.825 | 0.333 | 0.249 |
    | supervised network, 128-64-64-4 | 0.973 | 0.977 | 0.990 | 0.934 |
    | supervised network, 128-256-256-4 | 0.983 | 0.988 | 0.992 | 0.947 |

    A ``synthetic`` query is R c + ``difficulty`` * noise, with the right concept c, an orthonormal
    map R that all problems share, and independent standard normal noise. With n answers and sigma =
    ``difficulty`` the best policy is right with probability ∫ phi(x) Phi(x + 1/sigma)^(n-1) dx:

    | ``difficulty``, n = 4 | 0 | 0.25 | 0.35 | 0.5 | 0.75 | 1 | 2 |
    |---|---|---|---|---|---|---|---|
    | best accuracy | 1 | 0.994 | 0.945 | 0.823 | 0.654 | 0.552 | 0.393 |

    ## Action Space

    ``Discrete(4)`` (``Discrete(n_choices)`` for ``synthetic``): the answer, 0 for A.

    ## Observation Space

    ``Box`` of ``float32``. ``easy_vqa`` coordinates have about unit variance and are in [-5, 5].

    | ``easy_vqa``, shape (128,) | |
    |---|---|
    | 0 - 63 | picture: EfficientNet-Lite0 features, whitened |
    | 64 - 95 | question: bag of words |
    | 96 - 127 | answers A to D, 8 each: a fixed random direction for each possible answer |

    | ``synthetic``, shape (``embed_dim``,); k = ``embed_dim // (n_choices + 1)`` | |
    |---|---|
    | the first ``embed_dim - n_choices * k`` | query |
    | k for each answer | its concept, a unit vector |

    ## Rewards

    | | reward |
    |---|---|
    | right answer | +1.0 |
    | wrong answer | -0.5 |

    With four answers, uniform guessing has an expected reward (``task.random_score``) of -0.125.
    The best policy (``task.oracle_score``) has 1 for ``easy_vqa``; for ``synthetic`` it follows
    from the best accuracy: 0.918 at the default difficulty.

    As text (``task.prompts``, ``task.score_texts``), the prompt has ``<image>`` for the picture,
    the question and the lettered answers. ``B``, ``(B)``, ``B)`` and ``B.`` choose B, in upper or
    lower case; any other completion is wrong.

    ## Starting State

    A problem drawn uniformly from the split, or ``reset(options={"problem_id": k})``. ``info`` has
    ``problem_id``, ``is_success`` and ``accuracy`` as floats.

    | ``split`` | ``easy_vqa``: questions, pictures | ``synthetic``: ids |
    |---|---|---|
    | ``train`` | 34,747, 3,600 | 4000 to 2**53 - 1 |
    | ``validation`` | 1,942, 200 of the package's training pictures | 0 to 999 |
    | ``tuning`` | 1,886, 200 of the package's training pictures | 1000 to 1999 |
    | ``test`` | 9,673, the package's 1,000 test pictures | 2000 to 3999 |

    No two splits share a picture. ``easy_vqa`` ids are 0 to 48247, in the order of the package:
    training questions first. In each split the right answer is equally often A, B, C and D, to
    within 1.

    ## Episode End

    Always ``terminated`` after one step, never ``truncated``.

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

    ``gymnasium.make_vec("GRPO-VLM-v0", num_envs=1024)`` makes ``VLMVectorEnv``: a step takes a few
    array operations for any number of sub-environments. ``reset`` takes an array of problem ids.

    | argument | default | |
    |---|---|---|
    | ``num_envs`` | 1 | |
    | ``autoreset_mode`` | ``SAME_STEP`` | ``NEXT_STEP`` idles every second step; not in torch |
    | ``device`` | None | ``"cpu"``, ``"cuda"``, ``"auto"``: the torch view of ``easy_vqa`` |

    The torch view takes and returns tensors on the device, where it draws problems and judges
    answers; ``step``, and ``reset`` without ids, transfer nothing to the host. A seed draws
    different problems than in numpy, also uniformly. An action out of range is a wrong answer.

    ## Version History

    | | |
    |---|---|
    | v0 | first version |
    """

    task_class = VLMTask


class VLMVectorEnv(TaskVectorEnv):
    """``VLMEnv`` as a vector environment, with the arguments of ``TaskVectorEnv`` too."""

    task_class = VLMTask


def make_vector_env(
    num_envs: int = 1, *, device: Any = None, **options: Any
) -> VectorEnv[Any, Any, Any]:
    """Called by ``gymnasium.make_vec``: ``VLMVectorEnv``, or the torch view if ``device`` is given.
    Raises ModuleNotFoundError if that needs torch and torch is not installed."""
    if device is None:
        return VLMVectorEnv(num_envs, **options)
    try:
        from grpo_envs.vlm.torch_view import TorchVLMVectorEnv
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"device={device!r} needs torch: install it") from error
    return TorchVLMVectorEnv(num_envs, device=device, **options)
