"""What a server tells Prometheus at ``/metrics``, beside what Litestar's plugin counts of its requests.

Nothing of a request's content is a label: a label has few values, and others read metrics.
"""

from collections.abc import Callable, Iterator
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.plugins.prometheus import PrometheusConfig
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sysone_jax.decider import Decider, Decision

SECONDS = Histogram(
    "sysone_stage_seconds",
    "Time in a stage of a request: body (its arrival), prepare (checks and prompts), answer (queue and reads)",
    ["stage"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
TOKENS = Counter("sysone_input_tokens", "Tokens of the prompts that were answered", ["model"])
QUESTIONS = Counter("sysone_questions", "Questions that were answered", ["model", "type"])
REFUSALS = Counter("sysone_refusals", "Requests without an answer, by what was wrong", ["dialect", "kind"])


def middleware_config() -> PrometheusConfig:
    """Litestar's own counts and times of requests, by route and status; paths that are no route count together."""
    return PrometheusConfig(app_name="sysone", prefix="sysone_http", group_path=True, exclude_unhandled_paths=True)


def count(decision: Decision, model: str) -> None:
    """An answer that was given."""
    TOKENS.labels(model).inc(decision.usage["input_tokens"])
    for question in decision.questions.values():
        QUESTIONS.labels(model, question.type).inc()


class Gauges(Collector):
    """What is looked up when Prometheus asks: the queue, the programs, the cache.

    Args:
        waiting: how many requests are in the queue.
        ready: whether requests are answered.
    """

    def __init__(self, decider: Decider, name: str, waiting: Callable[[], int], ready: Callable[[], bool]) -> None:
        self._decider, self._name, self._waiting, self._ready = decider, name, waiting, ready

    def collect(self) -> Iterator[Metric]:
        found: list[tuple[Any, float]] = [
            (GaugeMetricFamily("sysone_ready", "Whether every shape is compiled", labels=["model"]), self._ready()),
            (GaugeMetricFamily("sysone_queue", "Requests waiting or running", labels=["model"]), self._waiting()),
            (
                CounterMetricFamily("sysone_compiled_programs", "Programs built or read from disk", labels=["model"]),
                self._decider.compile_count,
            ),
            (
                CounterMetricFamily("sysone_prefix_cache_hits", "States that were read before", labels=["model"]),
                self._decider.cache_hits,
            ),
        ]
        for family, value in found:
            family.add_metric([self._name], float(value))
            yield family


def metrics_route(gauges: Gauges) -> HTTPRouteHandler:
    own = CollectorRegistry()  # of this application: a process may hold more than one
    own.register(gauges)

    @get("/metrics", operation_id="metrics", summary="For Prometheus", tags=["health"], media_type="text/plain")
    async def metrics() -> Response[bytes]:
        return Response(generate_latest(REGISTRY) + generate_latest(own), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return metrics
