"""What a run's answers come to, as Markdown: a table by type, and one of two runs side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from eval.metrics import Outcome
from eval.metrics.answers import accuracy, auroc, brier, log_loss, macro_f1
from eval.metrics.calibration import expected_calibration_error, noise_floor
from eval.metrics.ordinal import mean_absolute_error, ranked_probability_score
from eval.metrics.resampling import bootstrap, mcnemar, paired_difference
from eval.metrics.selective import area_under_risk_coverage
from eval.run import Answered, Result
from sysone_jax.errors import InputError

TYPES = ("choice", "noul", "score")


def report(result: Result) -> str:
    """A result's tables."""
    facts, answers = result.facts, result.answers
    task, client = facts["task"], facts["client"]
    lines = [
        f"# {task['name']}, version {task['version']}",
        "",
        f"{len(answers)} questions about {len({each.item for each in answers})} states, put to "
        f"{client.get('model') or client['kind']}"
        + (f" ({client['dtype']}, {client['read_mode']})" if "dtype" in client else "")
        + f"; median {1e3 * statistics.median(result.seconds):.0f} ms a state.",
        "",
        "| questions | count | accuracy (95 %) | chance | log loss | Brier | calibration error (by luck) | AUROC |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, mine in _groups(answers):
        outcomes = [each.outcome for each in mine]
        sure = bootstrap(accuracy, outcomes, groups=[each.item for each in mine])
        chance = sum(1 / len(each.probabilities) for each in outcomes) / len(outcomes)
        lines.append(
            f"| {group} | {len(outcomes)} | {sure.value:.3f} ({sure.low:.3f} to {sure.high:.3f}) | {chance:.3f} "
            f"| {log_loss(outcomes):.3f} | {brier(outcomes):.3f} "
            f"| {expected_calibration_error(outcomes):.3f} ({noise_floor(outcomes).mean:.3f}) | {_ranking(outcomes)} |"
        )
    outcomes = [each.outcome for each in answers]
    lines += [
        "",
        f"Macro F1 {macro_f1(outcomes):.3f}; area under risk and coverage {area_under_risk_coverage(outcomes):.3f}.",
        "AUROC is that of the confidence: the chance that a right answer was surer than a wrong one.",
    ]
    if scores := [each.outcome for each in answers if each.type == "score"]:
        lines.append(
            f"Scores: mean absolute error {mean_absolute_error(scores):.3f} levels, ranked probability score "
            f"{ranked_probability_score(scores):.3f}."
        )
    return "\n".join(lines) + "\n"


def compare(first: Result, second: Result) -> str:
    """Two results of one task, with the significance of their difference.

    Raises:
        InputError: they are of different tasks, or of different items.
    """
    if first.facts["task"] != second.facts["task"]:
        raise InputError(f"the runs are of {first.facts['task']} and {second.facts['task']}; compare runs of one task")
    keys = [[(each.item, each.question) for each in result.answers] for result in (first, second)]
    if keys[0] != keys[1]:
        raise InputError("the runs answered different items; give both the same limit and seed, and let both finish")
    one, other = ([each.outcome for each in result.answers] for result in (first, second))
    groups = [each.item for each in first.answers]
    names = [result.facts["client"].get("model") or result.facts["client"]["kind"] for result in (first, second)]
    lines = [f"| | {names[0]} | {names[1]} | difference (95 %) | p |", "|---|---|---|---|---|"]
    metrics: tuple[tuple[str, Callable[[Sequence[Outcome]], float]], ...] = (
        ("accuracy", accuracy),
        ("log loss", log_loss),
        ("Brier", brier),
    )
    for name, metric in metrics:
        found = paired_difference(metric, one, other, groups=groups)
        sure = found.interval
        lines.append(
            f"| {name} | {metric(one):.3f} | {metric(other):.3f} "
            f"| {sure.value:+.3f} ({sure.low:+.3f} to {sure.high:+.3f}) | {found.p_value:.3f} |"
        )
    lines += ["", f"McNemar's exact test of the answers that one alone got right: p = {mcnemar(one, other):.3f}."]
    return "\n".join(lines) + "\n"


def _groups(answers: Sequence[Answered]) -> list[tuple[str, list[Answered]]]:
    found = [(name, [each for each in answers if each.type == name]) for name in TYPES]
    return [("all", list(answers)), *((name, mine) for name, mine in found if mine)]


def _ranking(outcomes: Sequence[Outcome]) -> str:
    right = [each.is_right for each in outcomes]
    if all(right) or not any(right):
        return "-"
    return f"{auroc([each.confidence for each in outcomes], right):.3f}"
