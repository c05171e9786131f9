"""How a directory of tests lets go of what it compiled: import the fixture in its conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """A compiled program takes some memory maps, a process may have 65,530, and the suite compiles thousands.

    Not for directories whose models outlive a module: their programs would be compiled again.
    """
    yield
    jax.clear_caches()
