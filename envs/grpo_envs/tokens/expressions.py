"""The problems of the token tasks: chains of integer operations, nested to the left.

``a + b``, ``(a + b) * c``, ``((a + b) * c) - d``: parentheses make rules of precedence unnecessary.
``//`` and ``mod`` are Python's (rounding down; the sign of the divisor). No problem divides by
zero. Results are exact: at most 12 digits.

An id is a number in mixed radix, operators first, then operands. Operands whose order cannot change
the result are sorted: 17 + 25 and 25 + 17 are one problem with one id. In a run of one operation
these are all operands of ``a + b + c`` and ``a * b * c`` if the run comes first, and the later
operands of any run except of ``mod`` (``a - b - c`` is ``a - c - b``, ``a // b // c`` is
``a // c // b``).

A hash of the problem, and nothing else, decides its split: 80 % train, 10 % test, 5 % validation
and 5 % tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby, product
from typing import Any

import numpy as np

from grpo_envs.hashing import UInt64Array, mix
from grpo_envs.task import SPLITS, BoolArray, IntArray, Split, check_whole
from grpo_envs.tokens.vocabulary import TOKEN_ID, number_slots

OPERATORS = ("+", "-", "*", "//", "mod")
_APPLY: dict[str, Callable[[IntArray, IntArray], IntArray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "//": lambda a, b: a // np.maximum(b, 1),
    "mod": lambda a, b: a % np.maximum(b, 1),
}
_DIVIDES = ("//", "mod")

PRESETS: dict[str, dict[str, Any]] = {
    "easy": {"operators": "+", "digits": 2, "chain": 1},
    "medium": {"operators": "+-*", "digits": 2, "chain": 2},
    "hard": {"operators": "+-*//mod", "digits": 3, "chain": 3},
}
MAX_BASE = 10**4  # operands have at most four digits
MAX_LISTED = 200_000  # problems; a larger space is represented by a sample
N_LISTED = 2_000  # size of that sample in each split

SHARES: dict[Split, float] = {"train": 0.8, "validation": 0.05, "test": 0.1, "tuning": 0.05}
_SPLIT_OF_TWENTIETH = np.array([0] * 8 + [1, 2] + [0] * 8 + [3, 2])  # indices into ``SPLITS``
_SPLIT_NAMES = np.array(SPLITS)


class Expressions:
    """A space of problems. ``ArithmeticEnv`` documents the arguments.

    Raises:
        ValueError: an argument is out of range, or missing without a preset.
    """

    def __init__(
        self,
        preset: str | None,
        operators: str | Sequence[str] | None,
        digits: int | None,
        chain: int | None,
    ) -> None:
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"preset={preset!r}: expected one of {', '.join(PRESETS)} or None")
        given = {"operators": operators, "digits": digits, "chain": chain}
        explicit = {name: value for name, value in given.items() if value is not None}
        options = PRESETS.get(preset or "", {}) | explicit
        missing = [name for name in given if name not in options]
        if missing:
            raise ValueError(f"preset=None: expected values for {', '.join(missing)} as well")
        self.operators = parse_operators(options["operators"])
        self.digits = _check_range("digits", options["digits"], 1, 4)
        self.chain = _check_range("chain", options["chain"], 1, 3)
        if self.digits * (self.chain + 1) > 15:
            raise ValueError(
                f"digits={self.digits} and chain={self.chain}: expected digits * (chain + 1) to be "
                "at most 15, so that every result is exact"
            )
        self._base = 10**self.digits
        self._operand_radix = self._base ** np.arange(self.chain, -1, -1)
        self._operator_radix = len(self.operators) ** np.arange(self.chain - 1, -1, -1)
        self._operator_radix *= self._base ** (self.chain + 1)
        # At most 5**3 * 10**12, well within the 2**53 of an exact float.
        self.n_raw = len(self.operators) ** self.chain * self._base ** (self.chain + 1)
        self._divides = np.isin(self.operators, _DIVIDES)
        self._first_two_commute = np.isin(self.operators, ("+", "*"))
        self._rest_commute = np.isin(self.operators, ("+", "-", "*", "//"))
        self._op_tokens = np.array([TOKEN_ID[op] for op in self.operators])
        self._op_numbers = np.array([OPERATORS.index(op) for op in self.operators])
        self._operand_slots = number_slots(np.arange(self._base), self.digits)[:, 1:]
        # the input of the hash does not depend on this space's radix
        self._operand_key = MAX_BASE ** np.arange(self.chain, -1, -1)
        self._operator_key = len(OPERATORS) ** np.arange(self.chain - 1, -1, -1)
        self._operator_key *= MAX_BASE ** (self.chain + 1)
        self._chain_key = self.chain * len(OPERATORS) ** self.chain * MAX_BASE ** (self.chain + 1)

    # -- ids --------------------------------------------------------------------------------------

    def parts(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Operators (n, chain), as indices into ``self.operators``, and operands (n, chain + 1)."""
        column = ids[:, None]
        operators = column // self._operator_radix % len(self.operators)
        return operators, column // self._operand_radix % self._base

    def ids(self, operators: IntArray, operands: IntArray) -> IntArray:
        """The canonical id of each problem, (n,): interchangeable operands are sorted."""
        joined = np.empty(operators.shape, dtype=bool)
        joined[:, 0] = self._first_two_commute[operators[:, 0]]
        joined[:, 1:] = (operators[:, 1:] == operators[:, :-1]) & self._rest_commute[
            operators[:, 1:]
        ]
        operands = operands.copy()
        for end in range(self.chain, 0, -1):
            for k in range(end):
                left, right = operands[:, k], operands[:, k + 1]
                swap = joined[:, k] & (left > right)
                small, large = np.where(swap, right, left), np.where(swap, left, right)
                operands[:, k], operands[:, k + 1] = small, large
        return operators @ self._operator_radix + operands @ self._operand_radix

    def check_ids(self, ids: Any) -> IntArray:
        """See ``Task.check_ids``."""
        whole = check_whole(ids, self.n_raw)
        operators, operands = self.parts(whole)
        bad = self._by_zero(operators, operands)
        if bad.any():
            raise ValueError(
                f"problem id {whole[bad][0]}: divides by zero, expected an id from problem_ids "
                "or sample"
            )
        return self.ids(operators, operands)

    def _by_zero(self, operators: IntArray, operands: IntArray) -> BoolArray:
        return (self._divides[operators] & (operands[:, 1:] == 0)).any(axis=1)

    # -- splits -----------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, n: int, split: Split) -> IntArray:
        """n ids, (n,): operators and operands are uniform; ids outside the split are rejected.

        Raises:
            ValueError: the split is empty.
        """
        wanted, share = SPLITS.index(split), SHARES[split]
        drawn, missing = np.empty(0, dtype=np.int64), n
        while missing > 0:
            size = int(1.1 * missing / share) + 16
            operators = rng.integers(len(self.operators), size=(size, self.chain))
            operands = rng.integers(self._base, size=(size, self.chain + 1))
            ids = self.ids(operators, operands)
            good = self._split(ids) == wanted
            if self._divides.any():
                good &= ~self._by_zero(operators, operands)
            if not good.any():
                self._check_any(split)
            drawn = np.concatenate((drawn, ids[good]))
            missing = n - len(drawn)
        return drawn[:n]

    def _check_any(self, split: Split) -> None:
        """Raises ValueError if the split can be listed and is empty."""
        if self.n_problems <= MAX_LISTED and not len(self.problem_ids(split)):
            raise ValueError(
                f"split={split!r}: none of these {self.n_problems} problems is in it, expected "
                "more digits, a longer chain or other operators"
            )

    def split_of(self, ids: IntArray) -> np.ndarray:
        """The split of each canonical id, (n,) str."""
        return _SPLIT_NAMES[self._split(ids)]

    def problem_ids(self, split: Split) -> IntArray:
        """All problems of the split, sorted; in a space with more than ``MAX_LISTED`` problems, a
        fixed sample of ``N_LISTED`` different ones, sorted."""
        if self.n_problems <= MAX_LISTED:
            ids = self._all_ids
            return ids[self._split(ids) == SPLITS.index(split)]
        rng = np.random.default_rng(SPLITS.index(split))
        ids, first = np.unique(self.sample(rng, 2 * N_LISTED, split), return_index=True)
        return np.sort(ids[np.argsort(first)[:N_LISTED]])

    @cached_property
    def n_problems(self) -> int:
        """The number of problems: over all sequences of operators, the number of ways to choose
        the operands, where interchangeable ones are a multiset."""
        total = 0
        for operators in product(self.operators, repeat=self.chain):
            count, first = 1, True
            for operator, run in groupby(operators):
                choices = self._base - (operator in _DIVIDES)
                length = len(list(run))
                if first and operator in ("+", "*"):
                    count *= math.comb(choices + length, length + 1)
                else:
                    count *= self._base if first else 1
                    ordered = operator == "mod"
                    count *= choices**length if ordered else math.comb(choices + length - 1, length)
                first = False
            total += count
        return total

    @cached_property
    def _all_ids(self) -> IntArray:
        raw = np.arange(self.n_raw)
        operators, operands = self.parts(raw)
        good = ~self._by_zero(operators, operands) & (self.ids(operators, operands) == raw)
        return raw[good]

    def _hash(self, operators: IntArray, operands: IntArray) -> UInt64Array:
        """Hash of each problem, (n,), independent of this space's radix."""
        key = self._op_numbers[operators] @ self._operator_key + operands @ self._operand_key
        return mix((key + self._chain_key).astype(np.uint64))

    def _split(self, ids: IntArray) -> IntArray:
        return _SPLIT_OF_TWENTIETH[self._hash(*self.parts(ids)) % np.uint64(20)]

    # -- problems as tokens -----------------------------------------------------------------------

    def answers(self, ids: IntArray) -> IntArray:
        """The exact results, (n,)."""
        operators, operands = self.parts(ids)
        value = operands[:, 0]
        for k in range(self.chain):
            results = [_APPLY[operator](value, operands[:, k + 1]) for operator in self.operators]
            value = np.choose(operators[:, k], results)
        return value

    def slots(self, ids: IntArray) -> IntArray:
        """The expressions as slots of tokens (``vocabulary.py``), (n, slots). Each operand is
        aligned right in ``digits`` slots, so digits of equal place value line up.

        If the first operation commutes, a bit of the problem's hash chooses the operand that comes
        first: the smaller one in half of the problems.
        """
        operators, operands = self.parts(ids)
        swap = self._hash(operators, operands) >> np.uint64(63) == 1
        swap &= self._first_two_commute[operators[:, 0]]
        operands[swap, :2] = operands[swap, 1::-1]
        one = np.ones((len(ids), 1), dtype=np.int64)
        columns = [one * TOKEN_ID["("]] * (self.chain - 1)
        columns.append(self._operand_slots[operands[:, 0]])
        for k in range(self.chain):
            if k > 0:
                columns.append(one * TOKEN_ID[")"])
            columns.append(self._op_tokens[operators[:, k], None])
            columns.append(self._operand_slots[operands[:, k + 1]])
        return np.concatenate(columns, axis=1)

    @cached_property
    def answer_bounds(self) -> tuple[int, int]:
        """Lower and upper bound of all answers."""
        most = self._base - 1
        lows, highs = [0], [most]
        for operators in product(self.operators, repeat=self.chain):
            low, high = 0, most
            for operator in operators:
                match operator:
                    case "+":
                        high += most
                    case "-":
                        low -= most
                    case "*":
                        low, high = low * most, high * most
                    case "mod":
                        low, high = 0, most - 1
            lows.append(low)
            highs.append(high)
        return min(lows), max(highs)


def parse_operators(operators: str | Sequence[str]) -> tuple[str, ...]:
    """``"+-"`` or ``["+", "mod"]`` as a tuple in the order of ``OPERATORS``.

    Raises:
        ValueError: names the text that is not an operator, or the operator given twice.
    """
    found: list[str] = []
    rest = operators if isinstance(operators, str) else "".join(map(str, operators))
    while rest:
        operator = next((op for op in OPERATORS if rest.startswith(op)), None)
        if operator is None or operator in found:
            raise ValueError(
                f"operators={operators!r}, at {rest!r}: expected each of "
                f"{' '.join(OPERATORS)} at most once"
            )
        found.append(operator)
        rest = rest.removeprefix(operator)
    if not found:
        raise ValueError(f"operators={operators!r}: expected some of {' '.join(OPERATORS)}")
    return tuple(op for op in OPERATORS if op in found)


def _check_range(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}={value!r}: expected a whole number from {low} to {high}")
    return value
