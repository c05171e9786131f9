"""The OpenAPI document, as JSON at ``/schema/openapi.json``. No page is served: its scripts would come from elsewhere.

Bodies are read strictly by ``serving.body`` and not by the framework, so their schemas are put in here, from the
msgspec Structs of each route.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec
from litestar import MediaType, Request, Response, Router
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    RequestBody,
    Schema,
    SecurityScheme,
)

from sysone_jax import __version__

REFUSALS = {
    400: "The request is wrong; `param` names the field.",
    401: "No key, or a wrong one.",
    404: "The model is not served here.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body's encoding, or its content type, is not read here.",
    500: "The server failed.",
    429: "The client's limit is reached; try again after `Retry-After` seconds.",
    503: "The model is not ready, the queue is full, or the server is ending; try again after `Retry-After` seconds.",
}


class Bodies(Protocol):
    """What a route takes and gives: msgspec Structs, and a request's body."""

    @property
    def REQUEST(self) -> type: ...
    @property
    def RESPONSE(self) -> type: ...
    @property
    def ERROR(self) -> type: ...
    @property
    def EXAMPLE(self) -> Mapping[str, Any]: ...


def document(bodies: Iterable[Bodies]) -> OpenAPIConfig:
    components: dict[str, Any] = {}
    for each in bodies:
        components |= _schemas(each)[1]
    return OpenAPIConfig(
        title="sysone-jax",
        version=__version__,
        description="Typed questions about a state, answered with a probability for every allowed answer.",
        render_plugins=[_Document(components)],
        openapi_router=Router("/schema", route_handlers=[], after_request=_json_only, include_in_schema=False),
        components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"key": []}],
    )


def operation(bodies: Bodies) -> type[Operation]:
    """An operation that takes and gives these bodies."""
    (request, response, error), _ = _schemas(bodies)

    def content(schema: dict[str, Any], example: Any = None) -> dict[str, OpenAPIMediaType]:
        return {"application/json": OpenAPIMediaType(schema=cast(Schema, schema), example=example)}

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content(request, bodies.EXAMPLE), required=True)
            answer = OpenAPIResponse("An answer to everything asked.", content=content(response))
            told = dict(REFUSALS)
            if getattr(bodies, "SCHEMA_STATUS", 400) == 422:
                told[422] = "A field has the wrong type, or is missing or unknown."
            refusals = {str(status): OpenAPIResponse(said, content=content(error)) for status, said in told.items()}
            self.responses = {"200": answer, **refusals}

    return Described


def _schemas(bodies: Bodies) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """(references to request, response and error, the components they refer to)."""
    structs = (bodies.REQUEST, bodies.RESPONSE, bodies.ERROR)
    return msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")


class _Document(JsonRenderPlugin):
    """Litestar's document with the bodies' components; Litestar itself keeps those alone that it made."""

    def __init__(self, components: dict[str, Any]) -> None:
        super().__init__(path=["/", "/openapi.json"], media_type=MediaType.JSON)
        self._components = components

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        made = openapi_schema["components"]
        return super().render(
            request, openapi_schema | {"components": made | {"schemas": made.get("schemas", {}) | self._components}}
        )


def _json_only(response: Response[Any]) -> Response[Any]:
    if response.status_code == 404:  # Litestar's answer to other paths here is a page
        raise NotFoundException
    return response
