"""Readiness: the model is ready when every shape of its grid is compiled, and no request ever waits for a compiler."""

import threading
from collections.abc import Callable
from typing import Any

from sysone_jax.decider import Decider


class Readiness:
    """Warms a model on a thread of its own.

    Args:
        decider: the model.
        on_ready: called once, from that thread, when every program is there.
        on_failure: called instead, with what went wrong; the model never becomes ready.
    """

    def __init__(
        self, decider: Decider, on_ready: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.ready = False
        self._done = self._total = 0
        self._stopped = False
        self._decider, self._on_ready, self._on_failure = decider, on_ready, on_failure

    def start(self) -> None:
        threading.Thread(target=self._warm, name="sysone-warm", daemon=True).start()

    def stop(self) -> None:
        """Give up after the program that is being compiled."""
        self._stopped = True

    def body(self) -> dict[str, Any]:
        """What ``/ready`` says."""
        return {"status": "ready" if self.ready else "warming", "programs": {"done": self._done, "of": self._total}}

    def _warm(self) -> None:
        try:
            self._decider.warm(self._progress)
        except _Stopped:
            return
        except BaseException as error:
            self._on_failure(error)
            return
        self.ready = True
        self._on_ready()

    def _progress(self, done: int, of: int) -> None:
        self._done, self._total = done, of
        if self._stopped:
            raise _Stopped


class _Stopped(Exception):
    """Ends the warming from inside its own progress report."""
