"""``/v1/models``: what is served, by the names it is served under, and what a request may hold."""

import time
from typing import Any

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from serving import dialects
from serving.dialects import Dialect
from serving.door import no_such_model
from serving.faults import Fault
from serving.settings import Settings, body_limit
from sysone_jax.decider import Decider


class ModelLimits(Struct):
    """None is no cap beside the model's length."""

    questions: int | None
    options: int | None
    levels: int | None
    min_levels: int
    max_model_len: int
    max_body_bytes: int


class ModelCard(Struct):
    """OpenAI's fields, vLLM's, and ours from ``architecture`` on. ``root`` is the model behind the name."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[dict[str, Any]]
    architecture: str
    strategy: str
    dtype: str
    read_mode: str
    input_modalities: list[str]
    limits: ModelLimits


class ModelList(Struct):
    object: str
    data: list[ModelCard]


def model_routes(
    names: tuple[str, ...], decider: Decider, settings: Settings, dialect: Dialect
) -> list[HTTPRouteHandler]:
    """``GET /v1/models`` and ``GET /v1/models/NAME``; limits are those of ``dialect``'s requests."""
    created = int(time.time())
    taken = dialects.limits(dialect.LIMITS, decider)
    limits = ModelLimits(
        questions=taken.questions,
        options=taken.options,
        levels=taken.levels,
        min_levels=taken.min_levels,
        max_model_len=decider.max_model_len,
        max_body_bytes=body_limit(settings, decider),
    )
    cards = {
        name: ModelCard(
            id=name,
            object="model",
            created=created,
            owned_by="sysone-jax",
            root=decider.name,
            parent=None,
            max_model_len=decider.max_model_len,
            permission=[],
            architecture=decider.architecture,
            strategy=decider.strategy,
            dtype=decider.dtype,
            read_mode=decider.read_mode,
            input_modalities=list(decider.modalities),
            limits=limits,
        )
        for name in names
    }

    @get("/v1/models", operation_id="list_models", summary="The served models and their limits", tags=["models"])
    async def list_models() -> ModelList:
        return ModelList(object="list", data=list(cards.values()))

    @get("/v1/models/{name:path}", operation_id="get_model", summary="One served model", tags=["models"])
    async def get_model(name: FromPath[str]) -> ModelCard:
        asked = str(name).removeprefix("/")  # the slash before the parameter; a model's id may hold slashes of its own
        if asked not in cards:
            raise Fault("unknown_model", no_such_model(asked, names))
        return cards[asked]

    return [list_models, get_model]
