"""The errors that reach a user, and what each means at a door.

Every message is one line that names the field or file, the limit and the fix. The command line prints it and exits with
``exit_code``; the server turns ``kind`` and ``field`` into its dialect's status and body.
"""

from __future__ import annotations

_SHOWN = 200


def shown(value: object) -> str:
    """What a caller sent, for a message: an error must not be larger than the request that caused it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class SysoneError(Exception):
    """A failure with a message meant for the user. Exit code 1: the input was fine, the work failed."""

    exit_code = 1


class InputError(SysoneError):
    """The request or an argument is wrong; repeating it cannot succeed.

    Args:
        message: one line for the user.
        kind: what is wrong, for a door that answers kinds differently: ``invalid`` (the rest), ``missing``, ``type``,
            ``unknown_field``, ``unknown_model``, ``too_long`` (more tokens than the model reads), ``media``,
            ``unsupported`` (a fact of this model) or ``json`` (the body is not what its format says).
        field: dotted path of the field at fault, such as ``questions.team.criteria``.
        served: the message in the words of servers of this model, where they are not the reference's.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, kind: str = "invalid", field: str | None = None, served: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field
        self.served = served


class CheckpointError(SysoneError):
    """A model's files are missing, damaged, or of a kind that this version does not read."""

    exit_code = 2


class NonFiniteError(SysoneError):
    """A logit came out NaN or infinite: the answer is refused rather than guessed."""
