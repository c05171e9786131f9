"""What every test runs under: eight CPU devices, strict arithmetic, no model hub; and the built-in model's weights."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

# jax reads its environment when it is imported, and so do the commands that tests start as processes of their own.
if "jax" in sys.modules:
    raise RuntimeError("a pytest plugin imported jax before tests/conftest.py could set it up; find it with -p no:NAME")

DEVICES = "--xla_force_host_platform_device_count"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX_PLATFORMS=cuda in front of the command runs a test elsewhere
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # a missing axis is a bug, not a broadcast
os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"  # parity is to float32 rounding, on every platform

# The hub client reads these when it is imported. The home is new and empty: no test leans on a model this machine has.
hub_home = tempfile.TemporaryDirectory(prefix="sysone-hub-")
os.environ["HF_HOME"] = hub_home.name
os.environ["HF_HUB_OFFLINE"] = "1"

# An example that compiles a program takes longer than hypothesis grants; under CI its own profile has no deadline.
hypothesis.settings.register_profile("compiles", deadline=None)
if "CI" not in os.environ:
    hypothesis.settings.load_profile("compiles")


def pytest_unconfigure() -> None:
    hub_home.cleanup()


@pytest.fixture(scope="session")
def base_gguf() -> Path:
    """The built-in models' base weights. Where they were never fetched, the error names the command that does."""
    from sysone_jax import builtin

    return builtin.base_gguf()
