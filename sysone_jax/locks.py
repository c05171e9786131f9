"""Files and folders that one process works on at a time.

The operating system keeps these locks and lets go of them when their holder ends, however it ends: nothing is left
behind that would have to be cleared away by hand. They hold between the processes of one machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold ``path``, which exists, for the length of a block; gives False, and no lock, where another holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def unfinished(parent: Path, name: str) -> Iterator[Path]:
    """A new folder ``parent/.NAME.partial-...`` to fill and rename; what is not renamed goes with the block.

    What killed processes left of the same name goes first: no one holds it.
    """
    prefix = f".{name}.partial-"
    for left in parent.glob(f"{_literal(prefix)}*"):
        _remove_if_left(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        descriptor = os.open(folder, os.O_RDONLY)
        if _lock(descriptor) and folder.is_dir():
            break
        os.close(descriptor)  # another process took it for a left one before it was held
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    try:
        with locked(folder) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # gone meanwhile, or another user's
        return


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
