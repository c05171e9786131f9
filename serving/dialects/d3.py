"""Decision 3.0 as hosted: vLLM's bodies, confidence as the likeliest option's probability, a fixed prompt."""

from typing import Any

from serving.body import shown
from serving.dialects import Asked, Options
from serving.dialects.d3_bodies import EXAMPLE, D3Request, D3Response
from serving.dialects.system_one import asked_model, shaped_answers
from serving.dialects.vllm import Vllm
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError

_NOT_HERE = ("audio", "joint", "chat_template_kwargs")


class D3(Vllm):
    NAME = "d3"
    MOST_BYTES = 5_000_000 - 1
    """The document's limit is under 5 MB."""
    REQUEST: type = D3Request
    RESPONSE: type = D3Response
    EXAMPLE = EXAMPLE

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        asked_model(body, self._options)
        if body.get("instructions") is not None:
            raise InputError(
                "this model reads a fixed prompt, so it takes no instructions", kind="unsupported", field="instructions"
            )
        if self._options.unknown_fields == "ignore":
            body = {name: value for name, value in body.items() if name not in _NOT_HERE}
        elif strangers := [name for name in _NOT_HERE if body.get(name) is not None]:
            raise InputError(
                f"unknown field(s) {shown(strangers)}; this endpoint takes model, state, questions, images, videos",
                kind="unknown_field",
                field=strangers[0],
            )
        return super().parse(body, decider)

    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        return {
            "id": f"decision-{request_id}",
            "object": "structured_decision",
            "created": created,
            "model": model,
            "answers": shaped_answers(decision, self._options, "top", bare=False, levels_as_sent=False),
            "usage": decision.usage | {"output_tokens": 0},
            "diagnostics": decision.diagnostics,
        }


DIALECT = D3
