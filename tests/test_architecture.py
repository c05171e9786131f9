"""The house keeps its order: imports point one way, and only named doors open what stands apart.

The rules are the tables below, checked on the source of every module there is, so a new file is covered as it is added.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sysone_jax", "converters", "serving", "eval")

# From the ground up: no module reaches a layer above its own, neither directly nor through modules that have no layer.
LAYERS = (
    (
        "sysone_jax.errors",
        "sysone_jax.questions",
        "sysone_jax.answers",
        "sysone_jax.text",
        "sysone_jax.prompts",
        "sysone_jax.ops",
    ),
    ("sysone_jax.backbones",),
    ("sysone_jax.heads",),
    ("sysone_jax.reader",),
    ("sysone_jax.decider", "sysone_jax.__init__"),  # the package's public names are the decider's
    ("serving", "eval"),
    ("sysone_jax.cli", "sysone_jax.commands"),
)

# (who, what it never imports itself)
BARRED = (
    ("serving", ("sysone_jax.backbones", "sysone_jax.heads", "sysone_jax.ops")),
    ("eval", ("sysone_jax.backbones", "sysone_jax.heads", "sysone_jax.ops")),
    ("converters", ("serving", "eval")),
)

# what -> the modules outside it that may import it, and only inside a function, so that it loads when it is asked for
DOORS = {
    "converters": ("sysone_jax.checkpoint", "sysone_jax.loading"),
    "serving": ("sysone_jax.commands", "eval"),
    "eval": ("sysone_jax.commands",),
}

# The reference implementations live here and in tests/; everything else runs without torch.
TORCH = ("torch", "torchvision", "torchaudio")
TORCH_HOMES = ("eval.reference", "eval.references", "scripts.bench_read", "tests")


@dataclass(frozen=True)
class Import:
    target: str  # dotted; of `from a import b` it is a.b, module or not
    line: int
    lazy: bool  # stands inside a function
    binds_root: bool  # `import a.b`, which binds a


def within(name: str, root: str) -> bool:
    return name == root or name.startswith(root + ".")


def imports_of(source: str, module: str) -> list[Import]:
    """Every import of a module's source, wherever it stands, and ``import_module("a.b")`` with a name written out."""
    found = []

    def visit(node: ast.AST, lazy: bool) -> None:
        match node:
            case ast.Import(names=names):
                found.extend(Import(alias.name, node.lineno, lazy, binds_root=True) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                package = module.split(".")[:-level] if level else []
                prefix = ".".join([*package, base] if base else package)
                found.extend(Import(f"{prefix}.{alias.name}", node.lineno, lazy, binds_root=False) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.append(Import(name, node.lineno, lazy, binds_root=False))
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), lazy=False)
    return found


def read_modules(root: Path, folders: tuple[str, ...]) -> dict[str, list[Import]]:
    """Dotted name -> imports of every module below the folders. A package's own module is ``package.__init__``."""
    modules = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            modules[name] = imports_of(path.read_text(encoding="utf-8"), name)
    return modules


def layer_of(module: str) -> int | None:
    return next((i for i, names in enumerate(LAYERS) for name in names if within(module, name)), None)


def resolve(target: str, modules: dict[str, list[Import]]) -> str | None:
    """The project's module that an import's target names or lies in; None for a package from elsewhere."""
    parts = target.split(".")
    if len(parts) == 2 and parts[1].startswith("__"):
        return None  # `from sysone_jax import __version__` takes nothing of what the package offers
    while parts:
        for name in (".".join(parts), ".".join([*parts, "__init__"])):
            if name in modules:
                return name
        parts.pop()
    return None


def upward_paths(module: str, modules: dict[str, list[Import]]) -> Iterator[list[str]]:
    """Chains of imports from a module to one of a higher layer, through modules without a layer of their own."""
    own = layer_of(module)
    if own is None:
        return
    seen, chains = {module}, [[module]]
    while chains:
        chain = chains.pop()
        for imported in modules[chain[-1]]:
            target = resolve(imported.target, modules)
            if target is None or target in seen:
                continue
            seen.add(target)
            layer = layer_of(target)
            if layer is None:
                chains.append([*chain, target])
            elif layer > own:
                yield [*chain, target]


def violations(root: Path) -> list[str]:
    """One line for every import below ``root`` that breaks a rule above."""
    modules = read_modules(root, PACKAGES)
    others = read_modules(root, ("scripts", "tests"))
    lines = [f"{path[0]} reaches up: {' -> '.join(path)}" for name in modules for path in upward_paths(name, modules)]

    for module, imports in modules.items():
        for imported in imports:
            where = f"{module} line {imported.line} imports {imported.target}"
            for who, barred in BARRED:
                if within(module, who) and any(within(imported.target, name) for name in barred):
                    lines.append(f"{where}: not for {who}")
            for what, doors in DOORS.items():
                if within(imported.target, what) and not within(module, what):
                    if not any(within(module, door) for door in doors):
                        lines.append(f"{where}: only {' and '.join(doors)} may")
                    elif not imported.lazy:
                        lines.append(f"{where}: only inside a function")

    for module, imports in (modules | others).items():
        for imported in imports:
            where = f"{module} line {imported.line} imports {imported.target}"
            if imported.target.split(".")[0] in TORCH and not any(within(module, home) for home in TORCH_HOMES):
                lines.append(f"{where}: torch stays in {' and '.join(TORCH_HOMES)}")
            if imported.binds_root and within(imported.target, "eval"):
                lines.append(f"{where}: it hides the builtin; write `from eval...`")
    return lines


def test_the_project_keeps_its_order():
    assert violations(ROOT) == []


def test_converters_have_one_front_door():
    modules = read_modules(ROOT, ("sysone_jax",))
    doors = [name for name, found in modules.items() if any(within(one.target, "converters") for one in found)]
    assert len(doors) <= 1


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert folders
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_file_looks_outside_the_checkout():
    outside = re.compile(r"\.\./" + "shared")
    generated = {"__pycache__", "build", "dist"}
    mentions = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = parts[0].startswith(".") and parts[0] not in {".ci", ".gitignore"}
        if hidden or generated.intersection(parts) or not path.is_file():
            continue
        if outside.search(path.read_text(encoding="utf-8", errors="replace")):
            mentions.append(str(path))
    assert mentions == []


# A tree that keeps every rule; each case below breaks one of them by adding a line to one file.
SOUND = {
    "sysone_jax/__init__.py": "def load():\n    from sysone_jax.decider import load\n    return load()",
    "sysone_jax/errors.py": "__all__ = []",
    "sysone_jax/strategies.py": "from sysone_jax.heads import next_token",
    "sysone_jax/checkpoint.py": "def convert():\n    from converters.tables import TABLES\n    return TABLES",
    "sysone_jax/cli.py": "from sysone_jax.commands import serve",
    "sysone_jax/commands/serve.py": "def run():\n    from serving.app import app\n    from eval import runner",
    "sysone_jax/ops/__init__.py": "",
    "sysone_jax/ops/rope.py": "import jax\nfrom sysone_jax import __version__, errors",
    "sysone_jax/prompts/labels.py": "from sysone_jax.text import Tokenizer",
    "sysone_jax/text.py": "from .errors import InputError",
    "sysone_jax/backbones/llama.py": "from sysone_jax.ops.rope import rotate",
    "sysone_jax/heads/next_token.py": "from sysone_jax.backbones import llama",
    "sysone_jax/reader/engine.py": "from ..heads.next_token import read",
    "sysone_jax/decider.py": "from sysone_jax import strategies\nfrom sysone_jax.reader.engine import Engine",
    "converters/tables.py": "from sysone_jax.backbones.llama import Llama",
    "serving/app.py": "import sysone_jax",
    "eval/runner.py": "from sysone_jax import Decider",
    "eval/references/hf.py": "import torch",
    "tests/test_one.py": "import torch\nfrom eval.runner import run",
    "scripts/demo.py": "import sysone_jax",
}


def plant(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + "\n", encoding="utf-8")


def test_a_sound_tree_passes(tmp_path: Path):
    plant(tmp_path, SOUND)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("sysone_jax/ops/rope.py", "from sysone_jax.backbones.llama import Llama", "reaches up"),
        ("sysone_jax/ops/rope.py", "from ..backbones import llama", "reaches up"),
        ("sysone_jax/ops/__init__.py", "from ..backbones import llama", "reaches up"),
        ("sysone_jax/ops/rope.py", "from sysone_jax import load", "sysone_jax.__init__"),
        ("sysone_jax/ops/rope.py", "import sysone_jax.strategies", "strategies -> sysone_jax.heads.next_token"),
        ("sysone_jax/ops/rope.py", "x = importlib.import_module('sysone_jax.decider')", "reaches up"),
        ("sysone_jax/backbones/llama.py", "def f():\n    from sysone_jax.heads.next_token import read", "reaches up"),
        ("sysone_jax/heads/next_token.py", "from sysone_jax.reader.engine import Engine", "reaches up"),
        ("sysone_jax/reader/engine.py", "import sysone_jax.decider", "reaches up"),
        ("sysone_jax/decider.py", "def f():\n    from serving.app import app", "reaches up"),
        ("sysone_jax/decider.py", "def f():\n    import sysone_jax.cli", "reaches up"),
        ("sysone_jax/prompts/labels.py", "from sysone_jax.heads import next_token", "reaches up"),
        ("sysone_jax/text.py", "from .reader import engine", "reaches up"),
        ("sysone_jax/errors.py", "from sysone_jax.decider import Decider", "reaches up"),
        ("serving/app.py", "from sysone_jax.backbones.llama import Llama", "not for serving"),
        ("eval/runner.py", "from sysone_jax.ops import rope", "not for eval"),
        ("eval/runner.py", "def f():\n    from sysone_jax.heads.next_token import read", "not for eval"),
        ("converters/tables.py", "from serving.app import app", "not for converters"),
        ("serving/app.py", "def f():\n    from converters.tables import TABLES", "may"),
        ("sysone_jax/decider.py", "def f():\n    from converters import tables", "may"),
        ("sysone_jax/checkpoint.py", "from converters.tables import TABLES", "only inside a function"),
        ("sysone_jax/commands/serve.py", "from serving.app import app", "only inside a function"),
        ("sysone_jax/cli.py", "def f():\n    from serving.app import app", "may"),
        ("sysone_jax/strategies.py", "def f():\n    from eval.runner import run", "may"),
        ("sysone_jax/backbones/llama.py", "import torch.nn", "torch stays"),
        ("eval/runner.py", "def f():\n    from torch import nn", "torch stays"),
        ("scripts/demo.py", "import torch", "torch stays"),
        ("tests/test_one.py", "import eval", "hides the builtin"),
        ("sysone_jax/commands/serve.py", "def f():\n    import eval.runner", "hides the builtin"),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, file: str, line: str, said: str):
    plant(tmp_path, SOUND | {file: f"{SOUND[file]}\n{line}"})
    assert any(said in found for found in violations(tmp_path))
