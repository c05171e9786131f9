"""What prefixes leave behind, kept across requests, least recently used out first, within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import jax


class PrefixCache:
    """Only the engine's thread touches it. A state (any tree of arrays) larger than the whole budget is not kept."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.hits = 0
        self._states: OrderedDict[Hashable, Any] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> Any:
        """None where nothing is kept under ``key``."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
            self.hits += 1
        return state

    def put(self, key: Hashable, state: Any) -> None:
        if size_of(state) > self.budget or key in self._states:
            return
        self._states[key] = state
        self._bytes += size_of(state)
        while self._bytes > self.budget:
            _, dropped = self._states.popitem(last=False)
            self._bytes -= size_of(dropped)


def size_of(state: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))
