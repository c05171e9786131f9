"""What can go wrong around a request, beside what is wrong with its body (``sysone_jax.errors.InputError``)."""

from collections.abc import Mapping

from sysone_jax.errors import SysoneError


class Fault(SysoneError):
    """A refusal before the body is read, or a failure after.

    Args:
        kind: ``auth_missing``, ``auth``, ``not_found``, ``method``, ``content_type``, ``content_encoding``,
            ``body_size``, ``timeout`` (the body did not arrive), ``rate`` (a client's limit), ``overload`` (the
            server's), ``starting`` (the model is not ready), ``ending`` (the server is) or ``internal``.
        message: for the client.
        headers: for the response, such as ``Retry-After``.
    """

    def __init__(self, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.headers = dict(headers or {})
