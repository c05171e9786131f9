"""From a model's name to a Decider: find it, convert it once, load it onto the mesh."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jax
import numpy as np

from sysone_jax import builtin, checkpoint, sharding
from sysone_jax.compile import use_cache
from sysone_jax.decider import READ_MODES, RENDERINGS, Decider
from sysone_jax.errors import CheckpointError, InputError, SysoneError
from sysone_jax.heads.answer_codes import AnswerCodesConfig
from sysone_jax.media.request import MediaReader
from sysone_jax.model import HEAD_DTYPE, Model, abstract_model, backbone_config, tower_config
from sysone_jax.ops.stack import unstack
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import Grid
from sysone_jax.strategies.answer_codes import CodeReads, released_budgets
from sysone_jax.strategies.joint_schema import JointReads
from sysone_jax.strategies.labels import LabelReads
from sysone_jax.strategies.request import ReadStrategy, Vision
from sysone_jax.text import Rendering, Tokenizer

DTYPES = ("float32", "bfloat16")
MOST_TOKENS = 8192
"""Default of ``max_model_len`` where the model reads more: every further octave adds programs to compile."""
PREFIX_CACHE_BYTES = 512 << 20

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load(
    name: str | Path | None = None,
    *,
    dtype: str | None = None,
    head_dtype: str | None = None,
    read_mode: str = "exact",
    rendering: Rendering = "reference",
    max_model_len: int | None = None,
    mesh: tuple[int, int] | None = None,
    served_name: str | None = None,
) -> Decider:
    """Load a model; the first load of a checkpoint converts it and keeps the result in the user's cache.

    Args:
        name: a built-in name, a Hugging Face folder, a converted folder, or the id of a model in the local Hugging Face
            cache; None is the embedded default, ``sysone-mini``. Nothing is downloaded.
        dtype: of the backbone's weights and activations: ``float32`` or ``bfloat16``. None is float32 on CPU and
            bfloat16 elsewhere. Sums, softmaxes and heads are float32 in both.
        head_dtype: of a joint head's weights and arithmetic: ``float32`` (None), or ``bfloat16``, in which Clef's own
            answers were computed. Models without a joint head take none.
        read_mode: ``exact``: an answer's bits depend on its request alone. ``throughput``: rows are computed in a shape
            that their number gives, which is faster and may move the last bits.
        rendering: how text that spells a control token is written, unless a request says otherwise.
        max_model_len: longest prompt in tokens; None is what the model reads, up to 8,192.
        mesh: (data, model) devices; None is all local devices on ``model``, and one on a CPU.
        served_name: what answers call the model; None is ``name``.

    Raises:
        CheckpointError: the model is not here, damaged, or of a kind that this version does not read.
        InputError: an argument is wrong.
        SysoneError: the cache cannot be written.
    """
    dtype = default_dtype() if dtype is None else dtype
    for value, allowed, field in (
        (dtype, DTYPES, "dtype"),
        (read_mode, READ_MODES, "read_mode"),
        (rendering, RENDERINGS, "rendering"),
    ):
        if value not in allowed:
            raise InputError(f"{field}: must be one of {', '.join(allowed)}, not {value!r}", field=field)
    if head_dtype not in (None, *DTYPES):
        raise InputError(f"head_dtype: must be one of {', '.join(DTYPES)}, not {head_dtype!r}", field="head_dtype")
    if max_model_len is not None and type(max_model_len) is not int:
        raise InputError(
            f"max_model_len: must be a whole number, not {max_model_len!r}", kind="type", field="max_model_len"
        )
    folder = resolve(name)
    try:
        use_cache(builtin.cache_folder() / "compiled")
    except OSError as error:
        raise SysoneError(
            f"the cache folder cannot be made ({error}); set SYSONE_CACHE to a folder that can be written"
        ) from None
    manifest = checkpoint.read_manifest(folder)
    if manifest.head is None and head_dtype is not None:
        raise InputError(
            "head_dtype: this model has no joint head, whose arithmetic it would choose; leave it out",
            kind="unsupported",
            field="head_dtype",
        )
    limit = prompt_limit(manifest, max_model_len)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    devices = sharding.make_mesh(mesh)
    model = load_weights(folder, manifest, devices, dtype, head_dtype)
    reader, no_media = media_reader(folder, manifest, limit)
    engine = Engine(
        model,
        devices,
        make_grid(reader, limit, dtype),
        precision="highest" if dtype == "float32" else "default",
        prefix_cache_bytes=PREFIX_CACHE_BYTES,
    )
    try:
        vision = None if reader is None else Vision(reader, Placeholders.of(tokenizer, reader.images.merge))
        strategy = _strategy(manifest, tokenizer, engine, limit, read_mode, vision)
    except SysoneError:
        engine.close()
        raise
    return Decider(
        name=served_name or str(name or builtin.DEFAULT),
        architecture=manifest.architecture,
        revision=f"{manifest.source_revision}-v{manifest.converter_version}",
        dtype=dtype,
        head_dtype=None if manifest.head is None else head_dtype or np.dtype(HEAD_DTYPE).name,
        read_mode=read_mode,
        rendering=rendering,
        max_model_len=limit,
        strategy=strategy,
        engine=engine,
        no_media=no_media,
    )


def strategy_class(manifest: checkpoint.Manifest) -> type[CodeReads | JointReads | LabelReads]:
    """How a model is read, which follows from what its source has beside the backbone."""
    if manifest.decision is not None:
        return CodeReads
    return LabelReads if manifest.head is None else JointReads


def _strategy(
    manifest: checkpoint.Manifest,
    tokenizer: Tokenizer,
    engine: Engine,
    limit: int,
    read_mode: str,
    vision: Vision | None,
) -> ReadStrategy:
    if manifest.decision is not None:
        codes = AnswerCodesConfig.from_json(manifest.decision)
        return CodeReads(tokenizer, engine, codes, limit, read_mode, vision)
    if manifest.head is not None:
        return JointReads(tokenizer, engine, limit, vision)
    return LabelReads(tokenizer, engine, limit, read_mode, vision)


def media_reader(folder: Path, manifest: checkpoint.Manifest, limit: int) -> tuple[MediaReader | None, str | None]:
    """How the model reads images and videos, or why it reads none although its kind does."""
    numbers = tower_config(manifest)
    if numbers is None:
        return None, None if manifest.decision is None else "the checkpoint holds no vision tower"
    files = folder / checkpoint.PROCESSOR
    if not files.is_dir():
        return None, "the checkpoint had no preprocessor_config.json when it was converted"
    reader = MediaReader.of(files, embed=numbers.out, max_tokens=limit)
    reader.check(numbers.patch_values, numbers.merge)
    return reader if manifest.decision is None else released_budgets(reader), None


def make_grid(reader: MediaReader | None, limit: int, dtype: str) -> Grid:
    """The shapes of a model's prompts, and of the frames that its budgets let through."""
    if reader is None:
        return Grid.of(limit, jax.default_backend(), dtype)
    frame = min(limit, reader.frame_tokens)
    return Grid.of(limit, jax.default_backend(), dtype, reader.images.merge**2, frame)


def default_dtype() -> str:
    """The backbone's element type where none is asked for."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def prompt_limit(manifest: checkpoint.Manifest, asked: int | None, most: int = MOST_TOKENS) -> int:
    """Most tokens of a prompt: what is asked for, or what the model reads, up to ``most``.

    Raises:
        InputError: the model does not read as many as are asked for.
    """
    longest = backbone_config(manifest.architecture, manifest.config).max_positions
    if manifest.decision is not None:
        longest = min(longest, AnswerCodesConfig.from_json(manifest.decision).max_length or longest)
    if asked is not None and not 1 <= asked <= longest:
        raise InputError(
            f"max_model_len: must be from 1 to {longest} for this model, not {asked}", field="max_model_len"
        )
    return asked or min(longest, most)


def load_weights(
    folder: Path, manifest: checkpoint.Manifest, mesh: jax.sharding.Mesh, dtype: str, head_dtype: str | None = None
) -> Model:
    """The weights of a converted folder, each read straight into its shards of ``mesh``."""
    model = abstract_model(manifest, np.dtype(dtype), HEAD_DTYPE if head_dtype is None else np.dtype(head_dtype))
    places = sharding.shardings(model, mesh)
    wanted = {path: (variable.shape, variable.dtype, places[path]) for path, variable in sharding.leaves(model)}
    return arranged(sharding.fill(model, checkpoint.load_arrays(folder, wanted)), mesh, dtype)


def arranged(model: Model, mesh: jax.sharding.Mesh, dtype: str) -> Model:
    """The model in the form that its programs run fastest from on this platform; see ``ops.stack``."""
    if jax.default_backend() == "cpu" and dtype == "bfloat16":
        with jax.set_mesh(mesh):
            model.backbone.layers = unstack(model.backbone.layers)
    return model


def resolve(name: str | Path | None) -> Path:
    """The converted folder of a model, made on the first call."""
    text = str(name if name is not None else builtin.DEFAULT)
    models = builtin.cache_folder() / "models"
    if text in builtin.NAMES:
        from converters.convert import builtin_revision, convert_builtin

        folder = models / f"{text}-{builtin_revision(text)}-v{checkpoint.CONVERTER_VERSION}"
        if not _is_kept(folder):
            convert_builtin(text, folder)
        return folder
    path = _folder(text)
    return path if checkpoint.is_converted(path) else _convert_once(path.resolve(), text, models)


def convert_to(name: str, destination: Path, dtype: str | None = None) -> checkpoint.Manifest:
    """Convert a model to a folder of one's choice, for ``load`` to take from there.

    Args:
        name: a built-in name, a Hugging Face folder, or the id of a model in the local Hugging Face cache.
        destination: a folder that does not exist yet; it appears whole or not at all.
        dtype: what the backbone is rounded to, ``float32`` or ``bfloat16``; None keeps the source's types.

    Raises:
        CheckpointError: the model is not here, damaged, converted already, or of a kind this version does not read.
        InputError: ``destination`` exists.
    """
    from converters.convert import convert, convert_builtin

    if name in builtin.NAMES:
        return convert_builtin(name, destination, dtype=dtype)
    source = _folder(name)
    if checkpoint.is_converted(source):
        raise CheckpointError(f"{name} is converted already; convert what it was made from, or copy the folder")
    return convert(source, destination, name=name, dtype=dtype)


def _folder(name: str) -> Path:
    """The folder that a name means, whatever it holds; CheckpointError when there is none."""
    try:
        path = Path(name).expanduser()
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, RuntimeError):  # a name too long for a path, a home that is not there
        path, exists, is_folder = Path(), False, False
    if is_folder:
        return path
    if HUB_ID.fullmatch(name) and not exists:
        return _hub_snapshot(name)
    raise CheckpointError(
        f"no model {name[:200]!r}: it is neither a folder, nor built in ({', '.join(builtin.NAMES)}), "
        "nor a hub model's id"
    )


def _convert_once(source: Path, name: str, models: Path) -> Path:
    from converters.convert import convert, revision

    if not (source / "config.json").exists():
        raise CheckpointError(
            f"{source} is no model: it holds no config.json, and no weights/ and tokenizer/ of a converted model"
        )
    folder = (
        models / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', source.name)}-{revision(source)}-v{checkpoint.CONVERTER_VERSION}"
    )
    if not _is_kept(folder):
        convert(source, folder, name=name)
    return folder


def _is_kept(folder: Path) -> bool:
    """Whether a conversion is in the cache; one that was damaged there is taken away, to be made again."""
    if not checkpoint.is_converted(folder):
        return False
    if checkpoint.is_whole(folder):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _hub_snapshot(repo: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        raise CheckpointError(
            f"{repo} is neither a folder here nor in the local Hugging Face cache, and nothing is downloaded unasked; "
            f"a model of the hub is fetched with: hf download {repo}"
        ) from None
