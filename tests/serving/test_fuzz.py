"""A thousand bodies that no client should send; ``scripts/fuzz_server.py`` has as many more as one likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def test_no_body_is_the_servers_fault(serve: Callable[..., Any], label_folder: Path, cache: Path):
    server = serve("--model", str(label_folder), "--max-model-len", "256", "--max-queue", "4096", cache=cache)
    server.wait_for("ready")
    command = [sys.executable, str(ROOT / "scripts" / "fuzz_server.py"), server.address, "--count", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1000 responses" in done.stdout and " 200: " in done.stdout.replace("{200", " 200")
    os.kill(server.popen.pid, signal.SIGTERM)
    assert server.end() == (0, "")
