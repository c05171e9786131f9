"""Decision 3.0 as hosted: vLLM's bodies, confidence as the likeliest option's probability, a fixed prompt."""

from typing import Any

from serving.body import shown
from serving.dialects import Asked
from serving.dialects.d3_bodies import EXAMPLE, D3Request, D3Response
from serving.dialects.system_one import asked_model
from serving.dialects.vllm import Vllm
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError

_NOT_HERE = ("audio", "joint", "chat_template_kwargs")


class D3(Vllm):
    NAME = "d3"
    CONFIDENCE = "top"
    MOST_BYTES = 5_000_000 - 1
    """The document's limit is under 5 MB."""
    REQUEST: type = D3Request
    RESPONSE: type = D3Response
    EXAMPLE = EXAMPLE

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
        told = super().shape(decision, model=model, request_id=request_id, created=created)
        del told["read_mode"]
        return told | {"usage": decision.usage | {"output_tokens": 0}}


DIALECT = D3
