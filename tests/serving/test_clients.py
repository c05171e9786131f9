"""The clients that people have, against a server of their own on the built-in model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

NAMES = ("sysone-mini", "Qwen/Qwen3-0.6B", "gpt-6-luna")
KEY = "test-key"
STATE = "Help! My payouts have been failing for 3 days."


@pytest.fixture(scope="module")
def server(base_gguf: Path, process: Any) -> Iterator[str]:
    """The address of a server whose main dialect is TypeSafe's, with a key.

    It reads prompts that 255 options fit in, and takes unknown fields as the compatibility suite wants.
    """
    started = process(
        ["--model", "sysone-mini", "--max-model-len", "8192", "--api-key", KEY, "--served-model-name", *NAMES]
        + ["--dialect", "typesafe", "--unknown-fields", "ignore"],
        None,
    )
    started.wait_for("ready")
    yield started.address
    os.kill(started.popen.pid, signal.SIGTERM)
    assert started.end() == (0, "")


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_typesafe_sdk(server: str):
    """TypeSafe's own client, which sends bodies of a kilobyte and more as zstd."""
    from typesafe_sdk import Choice, Noul, RetryPolicy, Score, TypeSafeClient

    teams = {"billing": "Payments, invoicing, refunds", "technical": "Bugs, outages, integrations", "sales": None}
    with TypeSafeClient(api_key=KEY, base_url=server, timeout=60, retry=RetryPolicy(max_retries=0)) as client:
        for state in (STATE, STATE * 40):
            given = client.system_one(
                state=state,
                questions={
                    "department": Choice(instructions="Which team should handle this?", criteria=teams),
                    "is_urgent": Noul(instructions="Does this convey urgency?"),
                    "frustration": Score(
                        instructions="How frustrated is the customer?", criteria=["Calm", "Frustrated", "Very angry"]
                    ),
                },
            )
            assert given.model == "sysone-mini" and given.request_id
            assert given.usage.input_tokens > 0
            assert given.choices["department"].choice in teams
            assert 0 <= given.nouls["is_urgent"].noul <= 1
            assert 0 <= given.scores["frustration"].score <= 2
            assert given.scores["frustration"].legend == {0: "Calm", 1: "Frustrated", 2: "Very angry"}
        assert [model.name for model in client.models.list().models] == [*NAMES, "jev-latest", "jev-preview"]


def test_typesafe_sdk_reads_refusals(server: str):
    from typesafe_sdk import RetryPolicy, TypeSafeClient, TypeSafeError

    for key, words in ((KEY, "Unknown model: other"), ("wrong", "Cannot authenticate")):
        with TypeSafeClient(api_key=key, base_url=server, timeout=60, retry=RetryPolicy(max_retries=0)) as client:
            with pytest.raises(TypeSafeError, match=words):
                client.system_one(state="s", questions={"q": {"type": "noul", "instructions": "?"}}, model="other")


def run(script: str, *arguments: str) -> Any:
    """What a script prints as JSON, in a process of its own: these clients leave their connections to its end."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SYSTEM_ONE = """
import sys
from system_one import HTTPConfig, SystemOne

server, key, state = sys.argv[1:]
agent = SystemOne(HTTPConfig(base_url=server, model="jev-latest", api_key=key, max_retries=0, timeout=60))
questions = {
    "bare": {"type": "choice", "instructions": "Which?", "criteria": ["billing", "technical", "sales"]},
    "is_urgent": {"type": "noul", "instructions": "Does this convey urgency?"},
    "frustration": {"type": "score", "instructions": "How frustrated?", "criteria": ["Calm", "Very angry"]},
}
print(agent.ask(state, questions).model_dump_json())
"""


def test_system_one(server: str):
    given = run(SYSTEM_ONE, server, KEY, STATE)
    assert list(given["answers"]) == ["bare", "is_urgent", "frustration"]
    assert given["answers"]["bare"]["choice"] in ("billing", "technical", "sales")


PYDECIDE = """
import json, sys
from decide import Choice, Client, Noul, Score
from decide.backends import load

server, key, state, backend = sys.argv[1:]
questions = {
    "department": Choice("Which team?", {"billing": "Payments", "technical": "Bugs", "sales": "Pricing"}),
    "is_urgent": Noul("Does this convey urgency?"),
    "frustration": Score("How frustrated?", ["Calm", "Frustrated", "Very angry"]),
}
given = Client([load(backend, api_key=key, base_url=server)]).decide(state, questions)
print(json.dumps({"route": given.meta.route, "model": given.meta.model, "answers": list(given.answers)}))
"""


@pytest.mark.parametrize(("backend", "path"), [("typesafe", ""), ("openai_decisions", "/v1")])
def test_pydecide(server: str, backend: str, path: str):
    given = run(PYDECIDE, server + path, KEY, STATE, backend)
    expected = ["department", "is_urgent", "frustration"]
    assert given == {"route": [f"{backend}:ok"], "model": "sysone-mini", "answers": expected}


def test_the_documented_example_of_openais_client(server: str, closing: ExitStack):
    """vLLM's documentation's example, with this server's address and key."""
    from openai import OpenAI

    client = closing.enter_context(OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0))
    decision = client.decisions.create(
        model="Qwen/Qwen3-0.6B",
        input="The package arrived with a broken screen.",
        questions=[
            {
                "type": "predicate",
                "name": "damaged",
                "instructions": "Does the customer report a damaged item?",
            },
            {
                "type": "choice",
                "name": "department",
                "instructions": "Which department should handle this complaint?",
                "choices": [{"value": "returns"}, {"value": "billing"}],
            },
            {
                "type": "score",
                "instructions": "How severe is the damage?",
                "levels": [{"label": "cosmetic"}, {"label": "broken"}],
            },
        ],
    )
    damaged, department, severe = decision.answers
    assert (damaged.type, damaged.name) == ("predicate", "damaged") and 0 <= damaged.probability <= 1
    assert department.choice in ("returns", "billing") and 0 <= department.confidence <= 1
    assert severe.name is None and [each.label for each in severe.probabilities] == ["cosmetic", "broken"]
    assert decision.usage.total_tokens == decision.usage.input_tokens + decision.usage.output_tokens
    assert [model.id for model in client.models.list()] == list(NAMES)


def test_openais_client_reads_booleans_and_refusals(server: str, closing: ExitStack):
    from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

    client = closing.enter_context(OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0))
    choices = [{"value": True}, {"value": False}, {"value": "true"}]
    ask: Any = {"model": "gpt-6-luna", "questions": [{"type": "choice", "instructions": "?", "choices": choices}]}
    raw = client.decisions.with_raw_response.create(input=STATE, safety_identifier="user-1", **ask)
    (answer,) = raw.parse().answers
    assert raw.request_id and [each.value for each in answer.probabilities] == [True, False, "true"]
    with pytest.raises(BadRequestError, match="images are not supported"):
        image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
        client.decisions.create(input=[{"role": "user", "content": [image]}], **ask)
    with pytest.raises(NotFoundError, match="Served here: `sysone-mini`"):
        client.decisions.create(input=STATE, **ask | {"model": "other"})
    stranger = closing.enter_context(OpenAI(base_url=f"{server}/v1", api_key="wrong", max_retries=0))
    with pytest.raises(AuthenticationError):
        stranger.decisions.create(input=STATE, **ask)


def test_the_compatibility_suite(server: str):
    """Every MUST of jevcompat. It wants a 422 for a choice without options, where the live API answers 400."""
    command = [str(Path(sys.executable).parent / "jevcompat"), "test", server, "--key", KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    failed = [line.strip() for line in done.stdout.splitlines() if "\u2717" in line]
    assert done.returncode == 0, done.stdout
    assert all("SHOULD errors.validation-shape" in line for line in failed), failed
