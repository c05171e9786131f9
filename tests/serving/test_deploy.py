"""The files for containers hold together: paths that are there, options that exist, metrics that are told."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from litestar.testing import TestClient

from serving.metrics import QUESTIONS, REFUSALS, SECONDS, TOKENS
from sysone_jax.cli import main

ROOT = Path(__file__).parents[2]


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_mounted_files_are_there():
    for service in compose()["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in compose()["volumes"] or (ROOT / source).is_file(), source


def test_copied_paths_are_there_and_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [source for line in lines if line.startswith("COPY ") for source in shlex.split(line)[1:-1]]
    assert copied and set(copied) == kept
    assert all((ROOT / source).exists() for source in copied)


def test_the_options_exist(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    used = [word for word in compose()["services"]["sysone"]["command"] if word.startswith("--")]
    used += re.findall(r'"(--[a-z-]+)"', (ROOT / "Dockerfile").read_text())
    assert used and set(used) <= known


def test_the_dashboard_shows_what_is_told(client: TestClient):
    SECONDS.labels("answer").observe(0)
    TOKENS.labels("m").inc(0)
    QUESTIONS.labels("m", "noul").inc(0)
    REFUSALS.labels("vllm", "json").inc(0)
    client.get("/health")
    told = client.get("/metrics").text
    dashboard = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    names = set(re.findall(r"sysone_[a-z_]+", json.dumps([panel["targets"] for panel in dashboard["panels"]])))
    assert len(names) >= 8
    for name in names:
        assert re.search(rf"^{name}[{{ ]", told, re.MULTILINE), name
