"""The arithmetic is tested on the mesh that it always runs on: one device, explicit axes."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

from sysone_jax.sharding import make_mesh


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    with jax.set_mesh(make_mesh((1, 1))):
        yield
