"""What a killed process leaves is cleared away; what a living one holds is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from sysone_jax.locks import locked, unfinished

HOLDER = """
import sys
from pathlib import Path
from sysone_jax.locks import unfinished
with unfinished(Path(sys.argv[1]), "model*") as folder:
    (folder / "half").write_text("written")
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_leaves_nothing_for_long(tmp_path: Path):
    process, left = holder(tmp_path)
    (tmp_path / ".model-other.partial-x").mkdir()
    with unfinished(tmp_path, "model*") as mine:
        assert left.is_dir() and mine != left, "a living process keeps its folder"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert (left / "half").is_file()
    with unfinished(tmp_path, "model*"):
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".model-other.partial-x"]


def test_what_is_renamed_stays(tmp_path: Path):
    with unfinished(tmp_path, "model") as folder:
        (folder / "file").write_text("all of it")
        folder.rename(tmp_path / "model")
    assert (tmp_path / "model" / "file").read_text() == "all of it"


def test_a_lock_is_for_one(tmp_path: Path):
    path = tmp_path / "file"
    path.touch()
    with locked(path) as first, locked(path) as second:
        assert first and not second
    with locked(path) as again:
        assert again
