"""How much is let in: places in the queue, and each client's requests and tokens a minute."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from serving.faults import Fault

WINDOW = 60.0
"""Seconds that requests and tokens are counted over."""
_MOST_CLIENTS = 10_000
_BYTES_A_TOKEN = 4
"""Of a body, for the estimate that is counted until the prompt's own number is known."""


class Queue:
    """Places for requests that are being worked on or wait for it; who finds none is told when to come back.

    Args:
        most: how many there are.
        what: what the places are for, in a refusal.
    """

    def __init__(self, most: int, what: str = "requests wait") -> None:
        self.waiting = 0
        self._most, self._what = most, what
        self._seconds = 0.0  # a request's share of the work, lately

    def check(self) -> None:
        """Fault when no place is free."""
        if self.waiting >= self._most:
            wait = min(60, max(1, math.ceil(self._seconds * self.waiting)))
            raise Fault("overload", f"{self.waiting} {self._what} already; try again later", {"Retry-After": str(wait)})

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        self.check()
        self.waiting += 1
        start, ahead = time.monotonic(), self.waiting
        try:
            yield
        finally:
            self.waiting -= 1
            self._seconds += 0.1 * ((time.monotonic() - start) / ahead - self._seconds)


@dataclass(slots=True)
class _Use:
    """What a client used of its window, which ends at ``ends``."""

    ends: float
    requests: int = 0
    tokens: int = 0


class Rates:
    """Requests and tokens a minute of each client, in windows that begin with a client's first request.

    Args:
        requests, tokens: a client's limits; None is no limit.
        clock: seconds.
    """

    def __init__(
        self, requests: int | None = None, tokens: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests, self._tokens, self._clock = requests, tokens, clock
        self._uses: dict[object, _Use] = {}

    def admit(self, client: object, body_bytes: int) -> "Admitted":
        """Count a request and the tokens that a body of its size may come to.

        Raises:
            Fault: the client is over a limit; a request refused so counts for nothing.
        """
        if self._requests is None and self._tokens is None:
            return Admitted(self, _Use(0), 0)
        use = self._use(client)
        estimate = math.ceil(body_bytes / _BYTES_A_TOKEN)
        over = None
        if self._requests is not None and use.requests >= self._requests:
            over = f"{self._requests:,} requests"
        elif self._tokens is not None and use.tokens and use.tokens + estimate > self._tokens:
            over = f"{self._tokens:,} tokens"
        if over is not None:
            wait = max(1, math.ceil(use.ends - self._clock()))
            raise Fault(
                "rate",
                f"Rate limit exceeded: at most {over} a minute; try again in {wait} s",
                {"Retry-After": str(wait), **self.headers(use)},
            )
        use.requests += 1
        use.tokens += estimate
        return Admitted(self, use, estimate)

    def headers(self, use: _Use) -> dict[str, str]:
        """Liquid's and OpenAI's headers about the limits that there are."""
        found: dict[str, str] = {}
        reset = duration(use.ends - self._clock())
        for name, most, used in (
            ("requests", self._requests, use.requests),
            ("tokens", self._tokens, use.tokens),
        ):
            if most is not None:
                found[f"x-ratelimit-limit-{name}"] = str(most)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, most - used))
                found[f"x-ratelimit-reset-{name}"] = reset
        return found

    def _use(self, client: object) -> _Use:
        now = self._clock()
        use = self._uses.get(client)
        if use is None or use.ends <= now:
            if len(self._uses) >= _MOST_CLIENTS:
                self._uses = {each: kept for each, kept in self._uses.items() if kept.ends > now}
            if len(self._uses) >= _MOST_CLIENTS:
                del self._uses[next(iter(self._uses))]
            use = self._uses[client] = _Use(now + WINDOW)
        return use


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that was counted."""

    rates: Rates
    use: _Use
    estimate: int

    def settle(self, tokens: int) -> dict[str, str]:
        """Count the tokens that it really came to instead of the estimate; the headers of its response."""
        self.use.tokens += tokens - self.estimate
        return self.rates.headers(self.use)


def duration(seconds: float) -> str:
    """Rounded up, as ``42s``, ``1m0s`` or ``2h0m5s``."""
    whole = max(0, math.ceil(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
