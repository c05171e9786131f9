"""The engine: one thread that owns the device.

The mesh is entered by this thread alone, because a mesh context is thread-local and a function called without it would
be compiled again. Work arrives as functions and leaves as futures, in the order it came.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from sysone_jax.backbones.decoder import MediaRows, PrefixState
from sysone_jax.errors import SysoneError
from sysone_jax.heads.joint_schema import Schema
from sysone_jax.heads.next_token import LabelLogits
from sysone_jax.media.qwen_patches import Patches
from sysone_jax.media.request import Media
from sysone_jax.model import Model
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.reader import programs
from sysone_jax.reader.cache import PrefixCache
from sysone_jax.reader.grid import Grid, pick
from sysone_jax.reader.lowering import grid_programs
from sysone_jax.reader.media import EncodedMedia
from sysone_jax.reader.rows import pad_tokens

T = TypeVar("T")

AHEAD = 8
"""Programs that are traced before they are compiled: enough to keep every processor busy, few enough to hold."""


class Engine:
    """Runs a model's programs; every method but ``submit`` and ``close`` is for work on the engine's own thread."""

    def __init__(self, model: Model, mesh: Mesh, grid: Grid, *, precision: str, prefix_cache_bytes: int) -> None:
        self.grid = grid
        self.cache = PrefixCache(prefix_cache_bytes)
        self._model = model
        self._mesh = mesh
        self._precision = precision
        self._jobs: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._closed, self._closing = False, threading.Lock()
        self._thread = threading.Thread(target=self._work, name="sysone-engine", daemon=True)
        self._thread.start()

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding: token ids are below it."""
        return self._model.backbone.config.vocab_size

    @property
    def devices(self) -> str:
        """The mesh in words: ``cpu 1x1``."""
        rows, columns = self._mesh.devices.shape
        return f"{self._mesh.devices.flat[0].platform} {rows}x{columns}"

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue ``work`` for the engine's thread. A future cancelled before its turn is dropped.

        Raises:
            SysoneError: the engine was closed.
        """
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise SysoneError("this model was closed; load it again to ask more of it")
            self._jobs.put((future, work))
        return future

    def close(self) -> None:
        """Finish what is queued and stop the thread."""
        with self._closing:
            if not self._closed:
                self._jobs.put(None)
            self._closed = True
        self._thread.join()

    def encoded(self, media: Media, placeholders: Placeholders | None) -> EncodedMedia | None:
        """A request's media as its passes read them; None when it has none."""
        if not media:
            return None
        assert placeholders is not None
        table = self._model.backbone.embed
        return EncodedMedia(media, placeholders, self._tower_features, table.shape[1], np.dtype(table.dtype))

    def _tower_features(self, item: Patches) -> np.ndarray:
        """Host array [tokens, D]: frame by frame, each in the shape that its own number of patches gives."""
        tower = self._model.tower
        assert tower is not None
        frames, *grid = item.grid
        count = math.prod(grid)
        size = pick(self.grid.patches, count)
        features = []
        for frame in item.values.reshape(frames, count, -1):
            padded = np.zeros((size, frame.shape[1]), np.float32)
            padded[:count] = frame
            features.append(programs.encode_frame(tower, padded, np.asarray(grid, np.int32)))
        return np.concatenate([each[: count // tower.config.merge**2] for each in jax.device_get(features)])

    def prefix_state(self, ids: tuple[int, ...], salt: Hashable, media: EncodedMedia | None = None) -> PrefixState:
        """The state after ``ids``, from the cache when the same ids and media were read under the same salt."""
        return self._kept(programs.prefill, ids, salt, media)

    def _kept(self, program: Callable[..., T], ids: tuple[int, ...], salt: Hashable, media: EncodedMedia | None) -> T:
        key = (ids, salt, None if media is None else media.digest)
        kept = self.cache.get(key)
        if kept is None:
            tokens, rows = self._padded(ids, media)
            room = pick(self.grid.room, tokens.size)
            kept = program(self._model, tokens, np.int32(len(ids)), room, rows)
            self.cache.put(key, kept)
        return kept

    def _padded(self, ids: Sequence[int], media: EncodedMedia | None) -> tuple[np.ndarray, MediaRows | None]:
        """A whole prefix or prompt at its size in the grid: tokens [S], and the rows of its media."""
        size = pick(self.grid.prefix if media is None else self.grid.media, len(ids))
        return pad_tokens(ids, size), None if media is None else media.rows(ids, size)

    def read_labels(self, state: PrefixState, rows: programs.Row) -> LabelLogits:
        """Host arrays of the rows' label logits."""
        return jax.device_get(programs.read_labels(self._model, state, rows))

    def read_codes(self, state: PrefixState, rows: programs.Tokens) -> np.ndarray:
        """Host array [Q, 255] of the code logits after rows that continue from one state."""
        return jax.device_get(programs.read_codes(self._model, state, rows))

    def encode_codes(self, rows: programs.Tokens, ids: Sequence[int], media: EncodedMedia | None) -> np.ndarray:
        """Host array [Q, 255] of the code logits after whole prompts.

        ``ids`` are those of any of the prompts: media stand at the same rows of all, and text counts on behind them.
        """
        shown = None if media is None else media.rows(ids, rows.tokens.shape[1])
        return jax.device_get(programs.encode_codes(self._model, rows, shown))

    def score_schema(
        self,
        ids: tuple[int, ...],
        shared: int,
        schema: Schema,
        salt: Hashable = None,
        media: EncodedMedia | None = None,
    ) -> np.ndarray:
        """Host array [O] of a joint read's option logits.

        Args:
            ids: the whole prompt.
            shared: how many leading ones belong to the state and its media.
            schema: padded to this prompt's room.
            salt: states read under one are not reused under another.
            media: what the state shows.
        """
        room = schema.tokens.shape[0]
        if self.grid.keeps(shared, len(ids)):
            state, prefix = self._kept(programs.begin, ids[:shared], salt, media)
            own = pad_tokens(ids[shared:], pick(self.grid.continued, len(ids) - shared))
            suffix = programs.resume(self._model, state, own, np.int32(len(ids) - shared))
            hidden = programs.join(prefix, suffix, np.int32(shared), room)
        else:
            tokens, rows = self._padded(ids, media)
            _, hidden = programs.begin(self._model, tokens, np.int32(len(ids)), room, rows)
        return jax.device_get(programs.score_schema(self._model, hidden, schema))

    def warm(self, read_mode: str, progress: Callable[[int, int], None]) -> None:
        """Compile every shape of the grid, without running any.

        Programs are traced here, where the mesh is, and compiled by as many threads as there are processors.
        """
        jobs = grid_programs(self._model, self._mesh, self.grid, read_mode)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiling = []
            for done, job in enumerate(jobs):
                progress(done, len(jobs))
                compiling.append(pool.submit(job.lower().compile))
                if done >= AHEAD:
                    compiling[done - AHEAD].result()
            for each in compiling:
                each.result()
        progress(len(jobs), len(jobs))

    def _work(self) -> None:
        with jax.set_mesh(self._mesh), jax.default_matmul_precision(self._precision):
            while (job := self._jobs.get()) is not None:
                future, work = job
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
