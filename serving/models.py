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


class NamedModel(Struct):
    """TypeSafe's fields."""

    name: str
    description: str
    release_date: str


class ModelList(Struct):
    """The lists of OpenAI and vLLM (``data``) and of TypeSafe (``models``) in one: clients look for either."""

    object: str
    data: list[ModelCard]
    models: list[NamedModel]


def model_routes(
    path: str, key: str, names: tuple[str, ...], decider: Decider, settings: Settings, dialect: Dialect
) -> list[HTTPRouteHandler]:
    """``GET path`` and ``GET path/NAME``; limits are those of ``dialect``'s requests, ``key`` tells routes apart."""
    created = int(time.time())
    taken = dialects.limits(dialect.LIMITS, decider)
    limits = ModelLimits(
        questions=taken.questions,
        options=taken.options,
        levels=taken.levels,
        min_levels=taken.min_levels,
        max_model_len=decider.max_model_len,
        max_body_bytes=body_limit(settings, decider, dialect),
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

    loaded = time.strftime("%Y-%m-%d", time.gmtime(created))
    described = f"{decider.architecture}, read by {decider.strategy}"
    named = [NamedModel(name=name, description=described, release_date=loaded) for name in (*names, *dialect.ALIASES)]

    @get(path, operation_id=f"list_models{key}", summary="The served models and their limits", tags=["models"])
    async def list_models() -> ModelList:
        return ModelList(object="list", data=list(cards.values()), models=named)

    @get(f"{path}/{{name:path}}", operation_id=f"get_model{key}", summary="One served model", tags=["models"])
    async def get_model(name: FromPath[str]) -> ModelCard:
        asked = str(name).removeprefix("/")  # the slash before the parameter; a model's id may hold slashes of its own
        if asked not in cards:
            raise Fault("unknown_model", no_such_model(asked, names, dialect.UNKNOWN_MODEL))
        return cards[asked]

    return [list_models, get_model]
