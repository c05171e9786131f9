"""A source checkpoint -> a converted folder: the front door of the converters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from converters import dense, joint_head, qwen3_5, qwen_vision, readout
from converters.lora import LoraSource
from converters.safetensors_source import SafetensorsSource
from converters.tables import Assignment, Rule, Source
from sysone_jax import builtin, checkpoint
from sysone_jax.backbones import QWEN3_5
from sysone_jax.checkpoint import Manifest
from sysone_jax.config import read_json
from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.heads.answer_codes import FILE as DECISION_FILE
from sysone_jax.heads.answer_codes import AnswerCodesConfig
from sysone_jax.heads.joint_schema import JointSchemaHead
from sysone_jax.media.qwen_patches import has_settings, read_settings
from sysone_jax.media.request import SETTINGS
from sysone_jax.model import abstract_model, tower_config
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.text import Tokenizer

TABLES: dict[str, tuple[tuple[Rule, ...], tuple[str, ...]]] = {
    "LlamaForCausalLM": (dense.RULES, dense.SKIP),
    "Qwen3ForCausalLM": (dense.RULES, dense.SKIP),
    **dict.fromkeys(QWEN3_5, (qwen3_5.RULES, qwen3_5.SKIP)),
}
"""Architecture -> its rows, and the patterns of tensors left out by name."""

REFUSED = {
    "Qwen3VLModel": "its vision tower also feeds the text network's first layers (deepstack), which this version does "
    "not compute; d3-edge is a Qwen3_5Model from release 3.0.1 on",
    "Qwen3VLForConditionalGeneration": "its vision tower also feeds the text network's first layers (deepstack), which "
    "this version does not compute",
}
"""Architectures that are known and left out, and why."""

DECISION_FILES = (DECISION_FILE, "readout.safetensors")
HEAD_FILES = ("joint_head.safetensors", "joint_head.safetensors.index.json", "joint_head_config.json")

SAMPLES = 64
"""Places at which a weight file is read for its fingerprint; all of it would take longer than loading it."""

STORED = {np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)}
"""Element types kept as they are; float16 and float64 become float32."""


def convert(source: Path, destination: Path, *, name: str, dtype: str | None = None) -> Manifest:
    """Convert a Hugging Face folder to ``destination``; ``dtype`` rounds the backbone, otherwise its types are kept.

    Args:
        name: what the manifest calls the source.

    Raises:
        CheckpointError: the folder is incomplete, damaged, of an unknown architecture, or does not fit its config.
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise InputError(f"dtype: must be float32 or bfloat16, not {dtype!r}", field="dtype")
    config = read_json(source / "config.json")
    architecture = _architecture(source, config)
    weights = SafetensorsSource(source)
    head = head_config = decision = None
    joint, coded = (any((source / name).exists() for name in files) for files in (HEAD_FILES, DECISION_FILES))
    if joint and coded:  # of either any, so that a lost file is missed
        raise CheckpointError(f"{source} has a joint head and answer codes; a model is read by one of the two")
    if joint:
        head, head_config = SafetensorsSource(source, "joint_head"), read_json(source / "joint_head_config.json")
    if coded:
        head, decision = SafetensorsSource(source, "readout"), read_json(source / DECISION_FILE)
    manifest = Manifest(
        architecture=architecture,
        config=_with_true_tie(config, weights),
        head=head_config,
        source=name,
        source_revision=revision(source),
        decision=decision,
        vision=_has_tower(config, weights),
    )
    try:
        processor = _processor(source) if manifest.vision else {}
        arrays = assigned(manifest, weights, head, dtype)
        # transformers 5.17, which the releases ran under, took Qwen2's pattern for them; ours takes Qwen3.5's
        tokenizer = Tokenizer.from_pretrained(source, pattern=None if decision is None else "qwen2")
        if processor and (tower := tower_config(manifest)) is not None:
            Placeholders.of(tokenizer, tower.merge).check(config)
        if not joint and not coded:
            tokenizer.check_template()
        if decision is not None:
            readout.check_tokenizer(AnswerCodesConfig.from_json(decision), tokenizer)
        checkpoint.save(destination, manifest, arrays, tokenizer, processor)
    except CheckpointError as error:
        raise CheckpointError(_once(source, error)) from None
    return manifest


def convert_builtin(name: str, destination: Path, *, dtype: str | None = None) -> Manifest:
    """Convert a built-in model from its base weights and the trained parts that ship with the package.

    ``dtype`` rounds the backbone, otherwise it stays in the float32 that it is dequantized to.
    """
    from converters.gguf_source import GgufSource

    path = builtin.base_gguf()
    base = GgufSource(path)
    weights, head, head_config, config = base, None, None, base.config()
    if name == "sysone-mini":
        config["num_hidden_layers"] = builtin.MINI_LAYERS
        weights = LoraSource(base, SafetensorsSource(builtin.MINI, "lora"), builtin.MINI_LAYERS)
        head = SafetensorsSource(builtin.MINI, "joint_head")
        head_config = read_json(builtin.MINI / "joint_head_config.json")
    manifest = Manifest("LlamaForCausalLM", config, head_config, source=name, source_revision=builtin_revision(name))
    checkpoint.save(destination, manifest, assigned(manifest, weights, head, dtype), base.tokenizer())
    return manifest


def builtin_revision(name: str) -> str:
    """Changes when the base file or a part that ships with the package changes."""
    digest = hashlib.sha256(builtin.SHA256.encode())
    for part in sorted(builtin.MINI.glob("*")) if name == "sysone-mini" else []:
        if part.suffix in (".safetensors", ".json"):
            digest.update(part.read_bytes())
    return digest.hexdigest()[:16]


def revision(source: Path) -> str:
    """A fingerprint of a checkpoint folder: its small files' bytes; name, size, time and samples of its weights."""
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in source.iterdir() if path.is_file()):
            if path.suffix in (".json", ".jinja", ".txt", ".model"):
                digest.update(f"{path.name}\n".encode() + path.read_bytes())
            elif path.suffix == ".safetensors":
                stat = path.stat()
                digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
                with path.open("rb") as file:  # archives may restore one time to every file
                    for sample in range(SAMPLES):
                        file.seek(max(0, stat.st_size - 4096) * sample // (SAMPLES - 1))  # the first bytes to the last
                        digest.update(file.read(4096))
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error}") from None
    return digest.hexdigest()[:16]


def assigned(
    manifest: Manifest, weights: Source, head: Source | None, dtype: str | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Every weight of the model by path; both tables are checked whole before the first array is read."""
    model = abstract_model(manifest, np.dtype(np.float32))
    rules, skip = TABLES[manifest.architecture]
    if manifest.config.get("tie_word_embeddings"):
        skip = (*skip, r"lm_head\.weight")  # the embedding again, or the config would not say so
    parts = [("backbone", Assignment(rules, weights, model.backbone, skip, model.backbone.config.period), dtype)]
    if model.tower is not None:
        tower = Assignment(qwen_vision.RULES, weights, model.tower, qwen_vision.SKIP)
        parts.append(("tower", tower, dtype))
    if head is not None and model.head is not None:
        table = joint_head.RULES if isinstance(model.head, JointSchemaHead) else readout.RULES
        parts.append(("head", Assignment(table, head, model.head), "float32"))
    return _stored(parts)


def _stored(parts: Iterable[tuple[str, Assignment, str | None]]) -> Iterator[tuple[str, np.ndarray]]:
    for part, assignment, dtype in parts:
        for path, array in assignment.arrays():
            wanted = np.dtype(dtype or (array.dtype if array.dtype in STORED else np.float32))
            with np.errstate(over="ignore"):
                stored = array.astype(wanted, copy=False)
            if not np.isfinite(stored).all():  # no answer could come of it
                raise CheckpointError(f"{part}/{path} holds NaN, or values beyond {wanted}; the weights are damaged")
            yield f"{part}/{path}", stored


def _architecture(source: Path, config: dict[str, Any]) -> str:
    if config.get("quantization_config") is not None:
        raise CheckpointError(
            f"{source / 'config.json'} has a quantization_config; convert the float checkpoint that it was made from"
        )
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(
            f"{source / 'config.json'} must name one architecture; supported: {', '.join(sorted(TABLES))}"
        )
    if names[0] in REFUSED:
        raise CheckpointError(
            f"{source / 'config.json'}: architecture {names[0]} is not supported: {REFUSED[names[0]]}"
        )
    if names[0] not in TABLES:
        raise CheckpointError(
            f"{source / 'config.json'}: architecture {names[0][:100]!r} is not supported; "
            f"supported: {', '.join(sorted(TABLES))}"
        )
    return names[0]


def _has_tower(config: dict[str, Any], weights: Source) -> bool:
    """Whether images and videos can be read. A checkpoint whose vision weights were taken out is one for text."""
    return isinstance(config.get("vision_config"), dict) and any(
        name.startswith(qwen_vision.PREFIXES) for name in weights.shapes()
    )


def _processor(source: Path) -> dict[str, bytes]:
    """The processor's files, which must say what this version can do; none when none says how images are prepared."""
    if not has_settings(source):
        return {}
    read_settings(source)
    return {name: (source / name).read_bytes() for name in SETTINGS if (source / name).exists()}


def _once(source: Path, error: CheckpointError) -> str:
    """The error with the folder's name in front, where it does not say it itself."""
    return str(error) if str(source) in str(error) else f"{source}: {error}"


def _with_true_tie(config: dict[str, Any], weights: Source) -> dict[str, Any]:
    """The config, untied when the file holds an output table of its own that differs from the embedding."""
    names = ("lm_head.weight", "model.embed_tokens.weight")
    if config.get("tie_word_embeddings") is not True or not all(name in weights.shapes() for name in names):
        return config
    output, embedding = map(weights.read, names)
    same = output.dtype == embedding.dtype and np.array_equal(output, embedding)
    return config if same else {**config, "tie_word_embeddings": False}
