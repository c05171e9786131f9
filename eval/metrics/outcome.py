"""One question's probabilities beside its right answer."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a model said about one question, and what was right.

    Args:
        probabilities: of the question's options; they sum to 1.
        right: index of the right option.
        labels: the options' names, by which F1 counts over questions; their indices when empty.

    Raises:
        ValueError: no probability, one that is no number in [0, 1], a sum that is not 1, or no such option.
    """

    probabilities: tuple[float, ...]
    right: int
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        p = self.probabilities
        if not p or not all(0 <= each <= 1 for each in p) or abs(math.fsum(p) - 1) > 1e-6:
            raise ValueError(f"probabilities must lie in [0, 1] and sum to 1, not {p}")
        if not 0 <= self.right < len(p):
            raise ValueError(f"the right option must be from 0 to {len(p) - 1}, not {self.right}")
        if self.labels and len(self.labels) != len(p):
            raise ValueError(f"{len(self.labels)} labels for {len(p)} probabilities")

    @property
    def picked(self) -> int:
        """The likeliest option, the first of equals."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def confidence(self) -> float:
        return max(self.probabilities)

    @property
    def is_right(self) -> bool:
        return self.picked == self.right

    def label(self, option: int) -> str:
        return self.labels[option] if self.labels else str(option)
