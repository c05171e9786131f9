"""The bodies of Liquid's System One as types; its answers are those of ``typesafe_bodies``."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from serving.dialects.vllm_bodies import Question

EXAMPLE: dict[str, Any] = {
    "state": "Help! My payouts have been failing for 3 days.",
    "questions": {
        "department": {
            "type": "choice",
            "instructions": "Which team should handle this?",
            "criteria": {
                "billing": "Payments, invoicing, refunds",
                "technical": "Bugs, outages, integrations",
                "sales": "Pricing, upgrades, new accounts",
            },
        },
        "is_urgent": {"type": "noul", "instructions": "Does this convey urgency?"},
        "frustration": {
            "type": "score",
            "instructions": "How frustrated is the customer?",
            "criteria": ["Calm", "Frustrated", "Very angry"],
        },
    },
}


class LiquidRequest(Struct):
    questions: Annotated[dict[str, Question], Meta(min_length=1, max_length=128)]
    model: str | None = None
    state: Annotated[
        Any, Meta(description="Text or JSON; a list may also hold OpenAI's image_url parts. None: questions alone.")
    ] = None
    images: Annotated[
        list[str | dict[str, Any]] | None,
        Meta(description="At most 8 data URLs, or {content_type, base64}: JPEG, PNG or WebP."),
    ] = None


class LiquidErrorDetail(Struct, forbid_unknown_fields=True):
    message: str
    type: str
    param: str | None
    code: str | None


class LiquidError(Struct, forbid_unknown_fields=True):
    error: LiquidErrorDetail
    detail: str | UnsetType = UNSET
