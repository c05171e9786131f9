"""What a server is told when it starts."""

from dataclasses import dataclass, field
from pathlib import Path

from serving.dialects import Dialect, Options
from sysone_jax.decider import Decider

TEXT_BYTES = 4 << 20
MEDIA_BYTES = 64 << 20
"""Longest body where images and videos may stand in it, a third longer than their files are."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A server's options; ``sysone serve --help`` has a flag for each.

    Attributes:
        names: what the model is called by clients; the first is what answers say. Empty: the model's own name.
        api_keys: keys that open every route but ``/health`` and ``/ready``. Empty: all may enter.
        dialect: of ``/v1/systemone``, and of errors outside any dialect's route.
        rendering: ``escape`` or ``reference``; a server answers strangers, so what spells a control token stays text.
        overlong: ``refuse`` or ``truncate`` a state that is too long, for models whose reference cuts it.
        max_body_bytes: longest request body; None follows from whether the model reads images and videos, and from the
            dialect.
        api_key_file: a file of further keys, read again when it changes.
        options: what this server does where dialects differ.
        max_queue: requests that may wait or run at once; others are told to come back.
        request_seconds: how long an accepted request may wait for its answer.
        requests_per_minute, tokens_per_minute: of each key, or of each address where there are no keys; None: no limit.
    """

    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    dialect: str = "vllm"
    rendering: str = "escape"
    overlong: str = "refuse"
    max_body_bytes: int | None = None
    api_key_file: Path | None = None
    options: Options = field(default_factory=Options)
    max_queue: int = 256
    request_seconds: float = 300.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


def body_limit(settings: Settings, decider: Decider, dialect: Dialect) -> int:
    """Most bytes of a request's body."""
    if settings.max_body_bytes is not None:
        return settings.max_body_bytes
    own = TEXT_BYTES if decider.modalities == ("text",) else MEDIA_BYTES
    return own if dialect.MOST_BYTES is None else min(own, dialect.MOST_BYTES)
