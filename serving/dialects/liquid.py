"""Liquid's ``/decisions/v1/systemone``: TypeSafe's answers, images beside the state or in it, faults as 422 objects."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from serving.body import shown
from serving.dialects import Asked, Dialect, Refusal, limits, row
from serving.dialects.liquid_bodies import EXAMPLE, LiquidError, LiquidRequest
from serving.dialects.system_one import (
    EXTENSIONS,
    asked_model,
    is_image_part,
    own_id,
    passed_on,
    refuse_unknown,
    shaped_answers,
    without_strangers,
)
from serving.dialects.typesafe_bodies import TypeSafeResponse
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError
from sysone_jax.media.images import ImageLimits, Picture, open_image
from sysone_jax.questions import Limits

KNOWN = ("model", "state", "questions", *(name for name in EXTENSIONS if name != "assets"))
MOST_TEXT = 250_000
"""Bytes of text in the state and one question."""
MOST_IMAGES = 8
IMAGE_LIMITS = ImageLimits(max_bytes=5_000_000)
PATCH = 32
MOST_PATCHES = 10_000
MOST_RATIO = 100


class Liquid(Dialect):
    NAME = "liquid"
    ALSO = ("/decisions/v1/systemone",)
    ECHOES_MODEL = True
    MOST_BYTES = 4_500_000
    LIMITS = Limits(questions=128, options=255, levels=10, min_levels=2)
    SCHEMA_STATUS = 422
    REQUEST: type = LiquidRequest
    RESPONSE: type = TypeSafeResponse
    ERROR: type = LiquidError
    EXAMPLE = EXAMPLE

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        questions = body.get("questions")
        if self._options.unknown_fields == "ignore":
            questions = without_strangers(questions)
        else:
            refuse_unknown(body, KNOWN)
        model = asked_model(body, self._options)
        if "questions" not in body:
            raise InputError("questions: field required", kind="missing", field="questions")
        if isinstance(questions, Mapping):
            questions = {qid: _checked(qid, question) for qid, question in questions.items()}
        keywords = passed_on(body)
        state, images = _without_images(body.get("state"))
        if images and keywords.get("images"):
            raise InputError(
                "images: stand in the state too; send them in one of the two places", kind="media", field="images"
            )
        place = "state" if images else "images"
        images = images or [_url(image, number) for number, image in enumerate(keywords.get("images", []))]
        _check_text(state, questions)
        if images and "image" in decider.modalities:
            _check_images(images, place)
        asked = {**keywords, "images": images, "state": state, "questions": questions}
        return Asked(model, own_id(body), {**asked, "limits": limits(self.LIMITS, decider)})

    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        return {
            "model": model,
            "answers": shaped_answers(decision, self._options, "distance", bare=True, levels_as_sent=True),
            "usage": decision.usage | {"output_tokens": 0},
        }

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        status, name, code = row(_STATUS, refusal.kind, (422, "invalid_request_error", None), self._options)
        told = {"message": refusal.message, "type": name, "param": refusal.field, "code": code}
        return status, {"error": told}


DIALECT = Liquid

_STATUS = {
    "json": (400, "invalid_request_error", None),
    "auth_missing": (401, "authentication_error", "invalid_api_key"),
    "auth": (401, "authentication_error", "invalid_api_key"),
    "unknown_model": (404, "invalid_request_error", "model_not_found"),
    "not_found": (404, "invalid_request_error", None),
    "method": (405, "invalid_request_error", None),
    "timeout": (408, "invalid_request_error", "timeout"),
    "body_size": (413, "invalid_request_error", "request_too_large"),
    "content_type": (415, "invalid_request_error", None),
    "content_encoding": (415, "invalid_request_error", None),
    "rate": (429, "rate_limit_error", "rate_limit_exceeded"),
    "internal": (500, "api_error", None),
    "overload": (503, "api_error", "overloaded"),
    "starting": (503, "api_error", "starting"),
    "ending": (503, "api_error", "ending"),
}
"""Everything else is a 422. The code, where there is one, tells apart what shares a status."""


def _checked(qid: str, question: Any) -> Any:
    """A question under Liquid's own rules, in the general form; other faults are found with everyone's."""
    if not isinstance(question, Mapping):
        return question
    path = f"questions.{qid}.criteria"
    criteria = question.get("criteria")
    match question.get("type"):
        case "choice" if isinstance(criteria, Mapping) and len(criteria) < 2:
            raise InputError(f"question {shown(qid)}: a choice has 2 to 255 options", field=path)
        case "noul" if isinstance(criteria, Mapping):
            for side in ("true", "false"):
                if side in criteria and criteria[side] is None:
                    raise InputError(
                        f"question {shown(qid)}: criteria.{side} is null; describe it or leave it out",
                        kind="type",
                        field=f"{path}.{side}",
                    )
            if not question.get("instructions") and not _says_more(criteria):
                raise _nothing_asked(qid)
            if set(criteria) <= {"true", "false"} and not _says_more(criteria):
                return {name: value for name, value in question.items() if name != "criteria"}
        case "noul" if not question.get("instructions"):
            raise _nothing_asked(qid)
    return question


def _nothing_asked(qid: str) -> InputError:
    return InputError(f"question {shown(qid)}: a noul needs instructions", kind="missing", field=f"questions.{qid}")


def _says_more(criteria: Mapping[str, Any]) -> bool:
    """Whether both sides are described, and by more than a bare yes and no; else a noul's criteria are not used."""
    sides = [criteria.get(side) for side in ("true", "false")]
    if not all(sides):
        return False
    return [side.strip().casefold() if isinstance(side, str) else side for side in sides] != ["yes", "no"]


def _without_images(state: Any) -> tuple[Any, list[str]]:
    """(what is left, images) of a state: OpenAI's image parts are taken out of a list, and a lone text is the state.

    No state is an empty one, where the questions stand alone.
    """
    if state is None:
        return "", []
    if not isinstance(state, list) or not any(map(is_image_part, state)):
        return state, []
    images = [part["image_url"]["url"] for part in state if is_image_part(part)]
    rest = [part for part in state if not is_image_part(part)]
    if not rest:
        return "", images
    return (rest[0] if len(rest) == 1 and isinstance(rest[0], str) else rest), images


def _url(image: Any, number: int) -> Any:
    """A data URL of either form that Liquid takes."""
    if isinstance(image, Mapping):
        kind, data = image.get("content_type"), image.get("base64")
        if set(image) != {"content_type", "base64"} or not isinstance(kind, str) or not isinstance(data, str):
            raise InputError(
                f"images[{number}]: must be a data URL, or an object with content_type and base64",
                kind="media",
                field=f"images.{number}",
            )
        return f"data:{kind};base64,{data}"
    return image


def _check_text(state: Any, questions: Any) -> None:
    own = _bytes(state)
    longest = max(map(_bytes, questions.values()), default=0) if isinstance(questions, Mapping) else 0
    if own + longest > MOST_TEXT:
        raise InputError(
            f"state: with its longest question it has {own + longest:,} bytes of text, more than {MOST_TEXT:,}; "
            "nothing is truncated",
            kind="too_long",
            field="state",
        )


def _bytes(value: Any) -> int:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


def _check_images(images: Sequence[Any], place: str) -> None:
    """Liquid's limits, by the headers of the images: nothing is decoded for one that is refused."""
    if len(images) > MOST_IMAGES:
        raise InputError(f"{place}: at most {MOST_IMAGES} images", kind="media", field=place)
    patches = 0
    for number, image in enumerate(images):
        if not isinstance(image, str):
            raise InputError(f"images[{number}]: must be a data URL", kind="media", field=f"images.{number}")
        picture = open_image(image, f"images[{number}]", IMAGE_LIMITS)
        if max(picture.width, picture.height) > MOST_RATIO * min(picture.width, picture.height):
            raise InputError(
                f"images[{number}]: at most {MOST_RATIO} times as long as it is wide; this one is "
                f"{picture.width} x {picture.height}",
                kind="media",
                field=f"images.{number}",
            )
        patches += _patches(picture)
    if patches > MOST_PATCHES:
        raise InputError(
            f"{place}: the images cover {patches:,} patches of {PATCH} x {PATCH} pixels, more than {MOST_PATCHES:,}",
            kind="media",
            field=place,
        )


def _patches(picture: Picture) -> int:
    return math.ceil(picture.width / PATCH) * math.ceil(picture.height / PATCH)
