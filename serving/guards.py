"""What a request must bring before its body is read: a key, a content type and an encoding that are read here."""

import hmac
from collections.abc import Callable, Sequence
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from serving.body import shown
from serving.encodings import check_encoding
from serving.faults import Fault
from serving.forms import KIND

PUBLIC = {"public": True}
"""``opt`` of a route that needs no key."""

Guard = Callable[[ASGIConnection, BaseRouteHandler], None]


def key_guard(keys: Sequence[str]) -> Guard:
    """Lets in who brings one of ``keys``, as ``Authorization: Bearer`` or ``X-API-Key``; all when there is none."""
    known = [key.encode() for key in keys]

    def check(connection: ASGIConnection, handler: BaseRouteHandler) -> None:
        if not known or handler.opt.get("public"):
            return
        offered = _offered_keys(connection)
        if not offered:
            raise Fault("auth_missing", "Unauthorized", {"WWW-Authenticate": "Bearer"})
        # All are compared, so that the time says nothing about which was close.
        if sum(hmac.compare_digest(one, key) for one in offered for key in known) == 0:
            raise Fault("auth", "Unauthorized", {"WWW-Authenticate": "Bearer"})

    return check


def _offered_keys(connection: ASGIConnection[Any, Any, Any, Any]) -> list[bytes]:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    offered = [connection.headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    return [one.strip().encode("latin-1") for one in offered if one]  # as the framework decodes headers


FORMS = {"forms": True}
"""``opt`` of a route that takes multipart bodies."""


def body_guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:
    """Refuse a body that says it is not JSON in UTF-8; one that says nothing is read as JSON."""
    check_encoding(connection.headers.get("content-encoding", ""))
    kind, *parameters = [part.strip().lower() for part in connection.headers.get("content-type", "").split(";")]
    if kind == KIND and handler.opt.get("forms"):
        return
    if kind not in ("", "application/json"):
        raise Fault("content_type", f"content-type: must be application/json, not {shown(kind)}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise Fault("content_type", f"content-type: charset must be utf-8, not {shown(value)}")
