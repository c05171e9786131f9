"""What the dialects of ``/v1/systemone`` have in common: fields, questions without strangers, answers."""

from collections.abc import Iterable, Mapping
from typing import Any

from serving.body import shown
from serving.dialects import Options
from sysone_jax import answers
from sysone_jax.decider import Decision
from sysone_jax.errors import InputError
from sysone_jax.questions import Score, check_text

MOST_ID = 200
"""Characters of a request's id."""
EXTENSIONS = (
    "images",
    "audio",
    "videos",
    "instructions",
    "assets",
    "chat_template_kwargs",
    "cache_salt",
    "priority",
    "request_id",
    "joint",
    "provider",
    "session_id",
    "trace",
    "user",
)
"""Fields that some documented System One body has beside model, state and questions."""
PASSED_ON = ("instructions", "images", "audio", "videos", "chat_template_kwargs", "cache_salt")
"""Those of them that ``Decider.request`` knows."""


def passed_on(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords for ``Decider.request`` from the extensions; InputError for one of the wrong type."""
    for name in ("images", "audio", "videos"):
        value = body.get(name)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{name}: must be a list of data URLs", kind="type", field=name)
    refuse_joint(body)
    return {name: body[name] for name in PASSED_ON if body.get(name) is not None}


def passed_on_with_parts(body: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """``passed_on`` with the state, whose images, where it is a list of parts, follow the body's own."""
    keywords = passed_on(body)
    keywords["state"] = body["state"]
    parts = _read_parts(body["state"]) if options.state_parts else None
    if parts is not None:
        keywords["state"], images = parts
        keywords["images"] = [*keywords.get("images", []), *images]
    return keywords


def refuse_joint(body: Mapping[str, Any]) -> None:
    """InputError for a body that asks for joint reads."""
    if body.get("joint"):
        raise InputError(
            "joint: this model reads each question on its own; joint reads need DiffusionGemma",
            kind="unsupported",
            field="joint",
        )


def own_id(body: Mapping[str, Any]) -> str | None:
    """The id that a request gives itself."""
    value = body.get("request_id")
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError("request_id: must be text", kind="type", field="request_id")
    check_text(value, "request_id")
    if len(value) > MOST_ID:
        raise InputError(f"request_id: at most {MOST_ID} characters", field="request_id")
    return value or None


def asked_model(body: Mapping[str, Any], options: Options) -> str | None:
    """The model that a body names, where naming one may be required."""
    model = body.get("model")
    if model is None and options.require_model:
        raise InputError("model: field required", kind="missing", field="model")
    if model is not None and not isinstance(model, str):
        raise InputError("model: must be text", kind="type", field="model")
    return model


def refuse_unknown(body: Mapping[str, Any], known: Iterable[str], words: str = "unknown field(s)") -> None:
    """InputError for fields outside ``known``."""
    known = tuple(known)
    if unknown := sorted(set(body) - set(known)):
        raise InputError(
            f"{words} {shown(unknown)}; this endpoint takes {', '.join(known)}", kind="unknown_field", field=unknown[0]
        )


def without_strangers(questions: Any) -> Any:
    """Questions without the fields, and a noul's criteria without the keys, that no document has."""
    if not isinstance(questions, Mapping):
        return questions
    return {qid: _without_strangers(question) for qid, question in questions.items()}


def _without_strangers(question: Any) -> Any:
    if not isinstance(question, Mapping):
        return question
    kept = {name: question[name] for name in ("type", "instructions", "criteria") if name in question}
    if kept.get("type") == "noul" and isinstance(kept.get("criteria"), Mapping):
        kept["criteria"] = {side: kept["criteria"][side] for side in ("true", "false") if side in kept["criteria"]}
    return kept


def _read_parts(state: Any) -> tuple[Any, list[Any]] | None:
    """(state, images) of a state that is a list of parts and of nothing else; None for any other state.

    Parts are ``{"type": "text", "text"}``, ``{"type": "json", "value"}`` and ``{"type": "image_url", "image_url"}``.
    One text or value is the state itself, several are a list of them, and images alone leave an empty text.
    """
    if not isinstance(state, list) or not state or not all(map(_is_part, state)):
        return None
    images = [part["image_url"]["url"] for part in state if part["type"] == "image_url"]
    rest = [part["text"] if part["type"] == "text" else part["value"] for part in state if part["type"] != "image_url"]
    return (rest[0] if len(rest) == 1 else rest or "", images)


def _is_part(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    match part.get("type"):
        case "text":
            return set(part) == {"type", "text"} and isinstance(part["text"], str)
        case "json":
            return set(part) == {"type", "value"}
        case "image_url":
            return is_image_part(part)
    return False


def is_image_part(part: Any) -> bool:
    """Whether a value is OpenAI's ``{"type": "image_url", "image_url": {"url"}}``."""
    if not isinstance(part, Mapping) or part.get("type") != "image_url" or set(part) != {"type", "image_url"}:
        return False
    link = part["image_url"]
    return isinstance(link, Mapping) and isinstance(link.get("url"), str) and set(link) <= {"url", "detail"}


def shaped_answers(
    decision: Decision, options: Options, confidence: str, *, bare: bool, levels_as_sent: bool
) -> dict[str, dict[str, Any]]:
    """A decision's answers by question id.

    Args:
        options: its ``confidence`` goes before the dialect's, and it may round.
        confidence: the dialect's.
        bare: a noul is its probability of yes and nothing more.
        levels_as_sent: a legend has the levels as JSON, not as text.
    """
    name = options.confidence or confidence
    shaped = {}
    for qid, question in decision.questions.items():
        made = answers.answer(question, decision.reads[qid], name)
        if bare and made["type"] == "noul":
            made = {"type": "noul", "noul": made["noul"]}
        if levels_as_sent and isinstance(question, Score):
            made["legend"] = {str(index): level for index, level in enumerate(question.criteria)}
        shaped[qid] = _rounded(made, options.rounding)
    return shaped


def rounded(value: float, decimals: int | None) -> float:
    """A number at so many decimals, a whole one without any, as TypeSafe prints them; None changes nothing."""
    if decimals is None:
        return value
    short = round(value, decimals)
    return int(short) if short == int(short) else short


def _rounded(answer: dict[str, Any], decimals: int | None) -> dict[str, Any]:
    if decimals is None:
        return answer
    short = dict(answer)
    for name in ("noul", "score", "confidence"):
        if name in short:
            short[name] = rounded(short[name], decimals)
    if "probabilities" in short:
        short["probabilities"] = {key: rounded(p, decimals) for key, p in short["probabilities"].items()}
    return short
