"""What a request must bring before its body is read: a key, a content type and an encoding that are read here."""

import hashlib
from collections.abc import Callable
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from serving.body import shown
from serving.encodings import check_encoding
from serving.faults import Fault
from serving.forms import KIND
from serving.keys import Keys

PUBLIC = {"public": True}
"""``opt`` of a route that needs no key."""

_KEY = "sysone_key"

Guard = Callable[[ASGIConnection, BaseRouteHandler], None]


def key_guard(keys: Keys) -> Guard:
    """Lets in who brings one of ``keys``, as ``Authorization: Bearer`` or ``X-API-Key``; all when there is none."""

    def check(connection: ASGIConnection, handler: BaseRouteHandler) -> None:
        if not keys.needed or handler.opt.get("public"):
            return
        offered = _offered_keys(connection)
        if not offered:
            raise Fault("auth_missing", "Unauthorized", {"WWW-Authenticate": "Bearer"})
        key = keys.match(offered)
        if key is None:
            raise Fault("auth", "Unauthorized", {"WWW-Authenticate": "Bearer"})
        connection.scope["state"][_KEY] = hashlib.sha256(key).digest()

    return check


def client_of(connection: ASGIConnection[Any, Any, Any, Any]) -> object:
    """Who is asking, for limits: the holder of a key, else an address."""
    key = connection.scope["state"].get(_KEY)
    if key is not None:
        return key
    return connection.client.host if connection.client is not None else None


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
