"""Tasks, those who answer them, and results: a run goes on where it was cut, and the way there changes no bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint

from eval.clients import Answers, Dice, InProcess, Server
from eval.report import compare, report
from eval.run import load_result, run
from eval.tasks import Task, load_task, shipped
from sysone_jax.decider import Decider
from sysone_jax.errors import InputError, SysoneError
from sysone_jax.loading import load
from sysone_jax.questions import Noul


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("decisions")


@pytest.fixture(scope="module")
def decider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decider]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = write_checkpoint(tmp_path_factory.mktemp("tiny"))
        with load(folder, max_model_len=512, rendering="escape", served_name="tiny") as loaded:
            yield loaded


# ------------------------------------------------------------------------------- tasks


def test_every_shipped_task_is_whole():
    assert shipped() == ["decisions"]
    for name in shipped():
        task = load_task(name)
        assert (task.name, task.license) == (name, "Apache-2.0") and len(task.sha256) == 64 and task.items


def test_items_are_drawn_alike_by_one_seed(task: Task):
    assert task.drawn(None, 0) == list(task.items) == task.drawn(1000, 3)
    five = task.drawn(5, 1)
    assert len(five) == 5 and task.drawn(5, 1) == five != task.drawn(5, 2)
    assert {item.name for item in five} < {item.name for item in task.items}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "cannot be read as YAML"),
        ("name: x", "a task has the fields name, version, license"),
        ("name: x\nversion: one\nlicense: x\ndescription: x\nitems: x", "version must be a whole number"),
        ("name: x\nversion: 1\nlicense: x\ndescription: x\nitems: none.jsonl", "cannot be read as items"),
        ("name: x\nversion: 1\nlicense: x\ndescription: x\nitems: empty.jsonl", "needs at least one item"),
    ],
)
def test_a_file_that_is_no_task(text: str, said: str, tmp_path: Path):
    (tmp_path / "task.yaml").write_text(text)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=said) as caught:
        load_task(str(tmp_path / "task.yaml"))
    assert str(caught.value).isprintable()
    with pytest.raises(InputError, match="no task 'nothing': neither a file, nor one of decisions"):
        load_task("nothing")


# ------------------------------------------------------------------------------- runs


class Cut(Dice):
    """Answers a few requests and then no more."""

    def __init__(self, answers: int) -> None:
        super().__init__(1)
        self.left = answers

    def answer(self, state: Any, questions: Any) -> Answers:
        if not self.left:
            raise SysoneError("gone")
        self.left -= 1
        return super().answer(state, questions)


def test_a_run_goes_on_where_it_was_cut(task: Task, tmp_path: Path):
    whole = run(task, Dice(1), tmp_path / "whole")
    assert len(whole.seconds) == 27 and len(whole.answers) == 47
    with pytest.raises(SysoneError, match="gone"):
        run(task, Cut(10), tmp_path / "cut")
    answers = tmp_path / "cut" / "answers.jsonl"
    answers.write_bytes(answers.read_bytes()[:-5])  # the last line was written in part
    began: list[tuple[int, int]] = []
    steps: list[None] = []
    result = run(
        task,
        Cut(18),
        tmp_path / "cut",
        begin=lambda done, of: began.append((done, of)),
        progress=lambda: steps.append(None),
    )
    assert began == [(9, 27)] and len(steps) == 18
    assert result.answers == whole.answers
    assert run(task, Cut(0), tmp_path / "cut").answers == whole.answers


def test_a_run_of_something_else_is_left_alone(task: Task, tmp_path: Path):
    run(task, Dice(1), tmp_path / "a", limit=3)
    before = (tmp_path / "a" / "answers.jsonl").read_bytes()
    for other, options, said in ((Dice(2), {"limit": 3}, "a run with client"), (Dice(1), {"limit": 4}, "with limit 3")):
        with pytest.raises(InputError, match=said):
            run(task, other, tmp_path / "a", **options)
    assert (tmp_path / "a" / "answers.jsonl").read_bytes() == before
    with pytest.raises(InputError, match="holds no result"):
        load_result(tmp_path)
    facts = load_result(tmp_path / "a").facts
    assert facts["task"]["sha256"] == task.sha256 and facts["client"] == {"kind": "dice", "seed": 1}
    assert facts["jax"] and facts["machine"] and facts["began"]


def test_a_server_gives_the_bits_of_the_model_in_process(task: Task, decider: Decider, tmp_path: Path):
    import socket
    import threading

    import uvicorn

    from serving.app import create_app
    from serving.settings import Settings

    here = run(task, InProcess(decider), tmp_path / "here", limit=6)
    assert here.facts["client"]["model"] == "tiny" and here.facts["client"]["rendering"] == "escape"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        ready = threading.Event()
        app = create_app(decider, Settings(api_keys=("key",)), on_ready=ready.set)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            assert ready.wait(180)
            with pytest.raises(SysoneError, match="answered 401"), Server(url) as stranger:
                stranger.answer("s", {"q": Noul()})
            with Server(url, "tiny", "key") as client:
                there = run(task, client, tmp_path / "there", limit=6)
            with (
                pytest.raises(SysoneError, match="answered 404: .*does not exist"),
                Server(url, "x", "key") as mistaken,
            ):
                mistaken.answer("s", {"q": Noul()})
        finally:
            server.should_exit = True
            thread.join()
    assert there.answers == here.answers
    with pytest.raises(SysoneError, match="cannot be reached"), Server(url) as late:
        late.answer("s", {"q": Noul()})


# ------------------------------------------------------------------------------- reports


def test_a_report_and_a_comparison(task: Task, tmp_path: Path):
    first, second = (run(task, Dice(seed), tmp_path / str(seed)) for seed in (1, 2))
    text = report(first)
    right = sum(each.outcome.is_right for each in first.answers) / 47
    assert f"| all | 47 | {right:.3f} (" in text and "| choice | 19 |" in text and "| score | 8 |" in text
    both = compare(first, second)
    assert "| accuracy |" in both and "McNemar" in both
    assert "+0.000 (+0.000 to +0.000) | 1.000 |" in compare(first, first)
    fewer = run(task, Dice(1), tmp_path / "fewer", limit=3)
    with pytest.raises(InputError, match="different items"):
        compare(first, fewer)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from sysone_jax.cli import main

    out = str(tmp_path / "dice")
    assert main(["eval", "run", "--dice", "3", "--limit", "5", "--out", out]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("# decisions, version 1\n\n") and told.err == ""
    assert main(["eval", "report", out]) == 0
    assert capsys.readouterr().out == told.out
    assert main(["eval", "compare", out, out]) == 0
    assert "| accuracy |" in capsys.readouterr().out
    for arguments, said in (
        (["run", "--dice", "3", "--url", "http://x", "--out", out], "--url and --dice: give one of the two"),
        (["run", "--dice", "4", "--limit", "5", "--out", out], "name another folder"),
        (["run", "--dice", "4", "--task", "none", "--out", out], "no task 'none'"),
        (["report", str(tmp_path)], "holds no result"),
    ):
        assert main(["eval", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.startswith("sysone: error: ") and said in err and err.count("\n") == 1
    assert json.loads((tmp_path / "dice" / "run.json").read_text())["limit"] == 5
