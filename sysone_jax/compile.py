"""Compilation: the cache that outlives the process, and the counter that shows that no request compiles."""

from __future__ import annotations

import threading
from pathlib import Path

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_FROM_CACHE = "/jax/compilation_cache/cache_hits"


class CompileCounter:
    """Counts the programs XLA built in this process, and those the persistent cache gave instead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = 0
        self._from_cache = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    @property
    def compiled(self) -> int:
        with self._lock:
            return self._requested - self._from_cache

    @property
    def requested(self) -> int:
        """Programs that were not in memory, whether built or read from disk."""
        with self._lock:
            return self._requested

    def _on_duration(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            with self._lock:
                self._requested += 1

    def _on_event(self, event: str, **kwargs: str | int) -> None:
        if event == _FROM_CACHE:
            with self._lock:
                self._from_cache += 1


COUNTER = CompileCounter()


def use_cache(folder: Path) -> None:
    """Keep compiled programs under ``folder``, every one of them; a cache folder set by the user is left alone.

    Compiled programs are code: the folder is made for its owner alone.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
