"""The demo runs to its end on the built-in model and is honest about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo(base_gguf: Path, tmp_path: Path):
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py")],
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        timeout=600,
    )
    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\033" not in out
    assert "█" in out and re.search(r"billing +█+\S* +\d+\.\d%", out)
    right, count, accuracy = re.search(r"all +(\d+) of (\d+) +(\d\.\d\d)", out).groups()  # type: ignore[union-attr]
    assert count == "47" and float(accuracy) == round(int(right) / 47, 2) > 0.6
    assert "95 % interval" in out and "curl -s http://localhost:8000/v1/systemone" in out
