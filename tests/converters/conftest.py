"""Checkpoints to spoil: each test gets a copy of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    written: dict[str, Path] = {}

    def get(*args: Any, **options: Any) -> Path:
        key = repr((args, options))
        if key not in written:
            written[key] = write_checkpoint(tmp_path_factory.mktemp("original"), *args, **options)
        return written[key]

    return get


@pytest.fixture
def checkpoint_copy(originals: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """``write_checkpoint``, once a session, and a copy in the test's own folder."""

    def copy(*args: Any, **options: Any) -> Path:
        return Path(shutil.copytree(originals(*args, **options), tmp_path / "source"))

    return copy
