"""Options that several sub-commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysone_jax.errors import InputError

if TYPE_CHECKING:
    from sysone_jax.decider import Decider

DIALECTS = ("vllm", "typesafe", "d3", "clef", "liquid")
DTYPES = ("float32", "bfloat16")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="M",
        help="a built-in name, a folder, or the id of a model in the local Hugging Face cache (default: sysone-mini)",
    )
    parser.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        default=[],
        help="what requests may call the model; answers say the first (default: the model's own name)",
    )
    parser.add_argument("--dialect", choices=DIALECTS, default="vllm", help="how requests and answers are written")
    parser.add_argument("--dtype", choices=DTYPES, help="of the backbone (default: float32 on CPU, bfloat16 elsewhere)")
    parser.add_argument(
        "--head-dtype",
        choices=DTYPES,
        help="of a joint head's arithmetic (default: float32; Clef's published answers are bfloat16's)",
    )
    parser.add_argument(
        "--read-mode",
        choices=("exact", "throughput"),
        default="exact",
        help="exact (default): an answer's bits depend on its request alone; throughput: faster under load",
    )
    parser.add_argument(
        "--rendering",
        choices=("reference", "escape"),
        default="escape",
        help="escape (default): text that spells a control token stays text; reference: as the reference reads it",
    )
    parser.add_argument("--max-model-len", type=whole, metavar="N", help="longest prompt in tokens")
    parser.add_argument(
        "--overlong",
        choices=("refuse", "truncate"),
        default="refuse",
        help="what becomes of a state that is too long, for models whose reference cuts it (default: refuse)",
    )


def load_model(args: argparse.Namespace) -> Decider:
    from sysone_jax.loading import load

    return load(
        args.model,
        dtype=args.dtype,
        head_dtype=args.head_dtype,
        read_mode=args.read_mode,
        rendering=args.rendering,
        max_model_len=args.max_model_len,
    )


def whole(text: str, least: int = 1, most: int | None = None) -> int:
    """A whole number of the command line, within its bounds."""
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        raise argparse.ArgumentTypeError(f"must be a whole number, {bounds}, not {text!r}")
    return number


def read_file(path: Path, option: str) -> bytes:
    """A file's bytes; InputError in one line when there is none to read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, option, error) from None


def unreadable(path: Path, option: str, error: OSError) -> InputError:
    return InputError(f"{option} {path}: {(error.strerror or str(error)).lower()}")


def served_names(args: argparse.Namespace) -> tuple[str, ...]:
    """What the model is called; InputError for a name that no request could mean."""
    names = args.served_model_name
    if not all(name.strip() for name in names):
        raise InputError("--served-model-name: a name must not be empty")
    if len(set(names)) < len(names):
        raise InputError("--served-model-name: a name stands twice; give each once")
    return tuple(names)


def door_options(args: argparse.Namespace) -> dict[str, Any]:
    return {"names": served_names(args), "rendering": args.rendering, "overlong": args.overlong}
