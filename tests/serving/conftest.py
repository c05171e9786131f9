"""Tiny real models behind the real application, loaded once; and ``sysone serve`` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from tiny_checkpoint import write_checkpoint
from tiny_decision import write_decision

from serving.app import create_app
from serving.settings import Settings
from sysone_jax.decider import Decider
from sysone_jax.loading import load

ROOT = Path(__file__).parents[2]
STARTS_WITHIN = 180  # seconds; it is there to end a hang, not to measure


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of these tests alone, for in-process models and for servers."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def label_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "labels", "Qwen3ForCausalLM")


@pytest.fixture(scope="session")
def joint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "joint", "LlamaForCausalLM", head=True)


@contextmanager
def loaded(folder: Path, cache: Path, **options: Any) -> Iterator[Decider]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(cache))
        decider = load(folder, **options)
    with decider:
        yield decider


@pytest.fixture(scope="session")
def labels(label_folder: Path, cache: Path) -> Iterator[Decider]:
    """A model that reads labels, in what a server writes: escaped."""
    with loaded(label_folder, cache, max_model_len=256, rendering="escape", served_name="tiny/labels") as decider:
        yield decider


@pytest.fixture(scope="session")
def joint(joint_folder: Path, cache: Path) -> Iterator[Decider]:
    """A model that scores all options in one read."""
    with loaded(joint_folder, cache, max_model_len=512, rendering="escape", served_name="tiny/joint") as decider:
        yield decider


@contextmanager
def ready_client(decider: Decider, settings: Settings | None = None) -> Iterator[TestClient]:
    """A client of the application, once it is ready."""
    ready = threading.Event()
    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failures.append(error)
        ready.set()

    with TestClient(create_app(decider, settings or Settings(), on_ready=ready.set, on_failure=fail)) as client:
        assert ready.wait(STARTS_WITHIN) and not failures, failures
        yield client


@pytest.fixture(scope="session")
def client(labels: Decider) -> Iterator[TestClient]:
    with ready_client(labels) as client:
        yield client


@pytest.fixture(scope="session")
def coded(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Decider]:
    """A model that is read by answer codes, and sees."""
    folder = tmp_path_factory.mktemp("checkpoints") / "codes"
    write_decision(folder)
    with loaded(folder, cache, max_model_len=320, rendering="escape", served_name="d3") as decider:
        yield decider


@pytest.fixture(scope="session")
def codes_client(coded: Decider) -> Iterator[TestClient]:
    with ready_client(coded) as client:
        yield client


@pytest.fixture(scope="session")
def connected() -> Callable[..., Any]:
    """``ready_client``, for tests that want an application of their own."""
    return ready_client


class Process:
    """``sysone serve`` on a free port. ``lines`` is what it printed so far."""

    def __init__(self, arguments: list[str], cache: Path | None) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | ({} if cache is None else {"SYSONE_CACHE": str(cache)})
        command = [sys.executable, "-m", "sysone_jax.cli", "serve", "--port", "0", *arguments]
        self.popen = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, word: str) -> str:
        """The first line that holds ``word``."""
        deadline = time.monotonic() + STARTS_WITHIN
        with self._came:
            while True:
                if found := [line for line in self.lines if word in line]:
                    return found[0]
                left = deadline - time.monotonic()
                if left <= 0 or not self._came.wait(min(left, 1)) and self.popen.poll() is not None:
                    self.popen.kill()
                    raise AssertionError(f"no {word!r} in {self.lines}; stderr: {self.end()[1]}")

    @property
    def address(self) -> str:
        return next(word.rstrip(";") for word in self.wait_for("http://").split() if word.startswith("http://"))

    def end(self) -> tuple[int, str]:
        """(exit code, stderr), once the process has ended."""
        code = self.popen.wait(STARTS_WITHIN)
        self._reader.join()
        assert self.popen.stderr is not None and self.popen.stdout is not None
        said = self.popen.stderr.read()
        self.popen.stderr.close()
        self.popen.stdout.close()
        return code, said

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._came:
                self.lines.append(line.rstrip("\n"))
                self._came.notify_all()


@pytest.fixture(scope="session")
def process() -> Iterator[Callable[[list[str], Path | None], Process]]:
    """``Process``, for servers that outlive a test. They are killed at the end if they still run."""
    started: list[Process] = []

    def start(arguments: list[str], cache: Path | None) -> Process:
        started.append(Process(arguments, cache))
        return started[-1]

    yield start
    for each in started:
        if each.popen.poll() is None:
            each.popen.kill()


@pytest.fixture
def serve() -> Iterator[Callable[..., Process]]:
    """Starts servers; whatever a test leaves running is killed."""
    started: list[Process] = []

    def start(*arguments: str, cache: Path | None = None) -> Process:
        started.append(Process(list(arguments), cache))
        return started[-1]

    yield start
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        if process.popen.stderr is not None and not process.popen.stderr.closed:
            process.end()
