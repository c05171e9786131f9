"""Tasks: states whose questions have known answers, as data with a version.

A task is a YAML file,

    name: decisions
    version: 1
    license: Apache-2.0
    description: ...
    items: decisions.jsonl     # beside it, in the form of eval.labelled

and results name it, its version and the hash of its items, so that two runs are of one task or are not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import grain
import yaml

from eval.labelled import Item, load_items
from sysone_jax.errors import InputError

SHIPPED = Path(__file__).parent / "data"
FIELDS = {"name": str, "version": int, "license": str, "description": str, "items": str}


@dataclass(frozen=True, slots=True)
class Task:
    """``sha256`` is that of the items' file."""

    name: str
    version: int
    license: str
    description: str
    sha256: str
    items: tuple[Item, ...]

    def drawn(self, limit: int | None, seed: int) -> list[Item]:
        """All items in their order, or ``limit`` of them, drawn by ``seed``."""
        if limit is None or limit >= len(self.items):
            return list(self.items)
        return list(grain.MapDataset.source(self.items).shuffle(seed=seed)[:limit])


def shipped() -> list[str]:
    """The names of the tasks that come along."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_task(name: str) -> Task:
    """A task that comes along, by its name, or the one in a YAML file.

    Raises:
        InputError: there is none, or its file is not a task's.
    """
    path = SHIPPED / f"{name}.yaml" if name in shipped() else Path(name)
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no task {name!r}: neither a file, nor one of {', '.join(shipped())}", field="task") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}", field="task") from None
    if not isinstance(told, dict) or told.keys() != FIELDS.keys():
        raise InputError(f"{path}: a task has the fields {', '.join(FIELDS)}, no more and no fewer", field="task")
    for field, kind in FIELDS.items():
        if not isinstance(told[field], kind) or isinstance(told[field], bool):
            raise InputError(f"{path}: {field} must be {'text' if kind is str else 'a whole number'}", field="task")
    source = path.parent / told.pop("items")
    try:
        raw = source.read_bytes()
        items = tuple(load_items(source))
    except (OSError, ValueError, KeyError, TypeError, InputError) as error:
        raise InputError(f"{source}: cannot be read as items: {error}", field="task") from None
    if len({item.name for item in items}) < len(items) or not items:
        raise InputError(f"{source}: needs at least one item, each with an id of its own", field="task")
    return Task(**told, sha256=hashlib.sha256(raw).hexdigest(), items=items)
