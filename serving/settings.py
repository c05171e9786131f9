"""What a server is told when it starts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """A server's options; ``sysone serve --help`` has a flag for each.

    Attributes:
        names: what the model is called by clients; the first is what answers say when a request names none. Empty: the
            model's own name.
        api_keys: keys that open every route but ``/health`` and ``/ready``. Empty: all may enter.
        dialect: of ``/v1/systemone``, and of errors outside any dialect's route.
        rendering: ``escape`` or ``reference``; a server answers strangers, so what spells a control token stays text.
        overlong: ``refuse`` or ``truncate`` a state that is too long, for models whose reference cuts it.
        max_body_bytes: longest request body.
    """

    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    dialect: str = "vllm"
    rendering: str = "escape"
    overlong: str = "refuse"
    max_body_bytes: int = 4 << 20
