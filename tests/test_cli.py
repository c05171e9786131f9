"""The command line as users meet it: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_checkpoint import write_checkpoint
from tiny_decision import write_decision

from serving import dialects
from serving.dialects.vllm_bodies import EXAMPLE, SystemOneResponse
from sysone_jax import __version__, checkpoint, cli, loading
from sysone_jax.commands import COMMANDS, options
from sysone_jax.text import Tokenizer

ROOT = Path(__file__).parents[1]
SMALL = {"state": "s", "questions": {"q": {"type": "noul"}}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module")
def tiny_joint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "joint", "LlamaForCausalLM", head=True)


@pytest.fixture(scope="module")
def tiny_codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "codes"
    write_decision(folder)
    return folder


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sysone(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Run]:
    """Runs one command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("SYSONE_CACHE", str(cache))

    def run(*arguments: Any, stdin: bytes = b"") -> tuple[int, str, str]:
        capfdbinary.readouterr()  # what was written before, such as by a fixture that saved a checkpoint
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    yield run


def process(*arguments: Any, cache: Path | None = None, **options: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ({} if cache is None else {"SYSONE_CACHE": str(cache)})
    command = [sys.executable, "-m", "sysone_jax.cli", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **options)


def test_the_door_opens_without_anything_heavy():
    script = (
        "import sys\nfrom sysone_jax import cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'jax', 'numpy', 'flax', 'orbax', 'transformers', 'tokenizers', 'litestar', 'msgspec', 'tqdm'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(sysone: Run, command: str):
    code, out, err = sysone(command, "--help")
    assert (code, err) == (0, "")
    assert f"example:\n  sysone {command}" in out


def test_options_name_what_there_is():
    assert options.DIALECTS == dialects.SYSTEM_ONE and options.DTYPES == loading.DTYPES


def test_version(sysone: Run):
    assert sysone("--version") == (0, f"sysone-jax {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND; see: sysone --help"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["decide", "--nope"], "unrecognized arguments: --nope; see: sysone decide --help"),
        (["decide", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (
            ["decide", "--max-model-len", "many"],
            "must be a whole number, at least 1, not 'many'; see: sysone decide --help",
        ),
        (["decide", "--max-model-len", "0"], "must be a whole number, at least 1, not '0'"),
        (["serve", "--port", "65536"], "must be a whole number, from 0 to 65535, not '65536'"),
        (["serve", "--max-body-bytes", "-1"], "must be a whole number, at least 1, not '-1'"),
        (["serve", "--host", "256.1.1.1"], "--host '256.1.1.1': no such address"),
        (["serve", "--served-model-name", "a", ""], "--served-model-name: a name must not be empty"),
        (["decide", "--served-model-name", "a", "b", "a"], "--served-model-name: a name stands twice"),
        (["serve", "--api-key-file", "/no/such"], "--api-key-file /no/such: no such file or directory"),
        (["serve", "--max-queue", "0"], "must be a whole number, at least 1, not '0'"),
        (["serve", "--api-key", " "], "--api-key: a key must not be empty"),
        (["decide", "--request", "/no/such/file"], "--request /no/such/file: no such file or directory"),
        (["decide", "--request", "/"], "--request /: is a directory"),
        (["decide", "--jsonl", "in"], "--jsonl IN and --out OUT belong together"),
        (["decide", "--out", "out"], "--jsonl IN and --out OUT belong together"),
        (["decide", "--jsonl", "in", "--out", "out", "--request", "-"], "give one of the two"),
        (["decide", "--jsonl", "/no/such/file", "--out", "out"], "--jsonl /no/such/file: no such file or directory"),
        (["decide", "--model", "nowhere"], "no model 'nowhere': it is neither a folder, nor built in"),
        (
            ["decide", "--model", "org/nowhere"],
            "org/nowhere is neither a folder here nor in the local",
        ),
        (["decide", "--jsonl", "/dev/null", "--out", "out"], "--jsonl /dev/null: is no regular file"),
        (["decide", "--jsonl", "pyproject.toml", "--out", "-"], "--out -: is no regular file"),
        (["inspect", "nowhere"], "no model 'nowhere'"),
        (["inspect", "./nowhere"], "no model './nowhere'"),
        (["pull", "nowhere"], "'nowhere' is not a built-in model; built in: sysone-mini, smollm2-135m"),
        (["convert", "nowhere", "never-made"], "no model 'nowhere'"),
        (["convert", "/", "."], "error: . exists; name a new folder, or delete it first"),
    ],
)
def test_bad_input_is_one_line(sysone: Run, arguments: list[str], said: str):
    code, out, err = sysone(*arguments, stdin=json.dumps(SMALL).encode())
    assert (code, out) == (2, "")
    assert err.startswith("sysone: error: ") and said in err
    assert err.count("\n") == 1 and err.endswith("\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "body: empty; send a JSON object"),
        (b"{", "body: not valid JSON"),
        (b"\xff", "body: not UTF-8, at byte 0"),
        (b"[]", "body: must be a JSON object, not an array"),
        (b'{"a": 1, "a": 2}', "body: duplicate key 'a'"),
        (b"[" * 100_000, "body: at most 100 lists and objects inside one another"),
        (b'{"state": 1}', "questions: field required"),
        (b'{"state": 1, "questions": {"q": {"type": "x\\ny"}}}', "unknown question type 'x\\ny'"),
        (b'{"model": "gpt-9", "state": 1, "questions": {"q": {"type": "noul"}}}', "The model `gpt-9` does not exist."),
        (b'{"model": "\\n\\ud800", "state": 1, "questions": {"q": {"type": "noul"}}}', "does not exist."),
    ],
)
def test_a_bad_body_is_one_line(sysone: Run, tiny: Path, tmp_path: Path, body: bytes, said: str):
    request = tmp_path / "request.json"
    request.write_bytes(body)
    for arguments, stdin in ((["--request", request], b""), (["--request", "-"], body), ([], body)):
        code, out, err = sysone("decide", "--model", tiny, *arguments, stdin=stdin)
        assert (code, out) == (2, "")
        assert err.startswith("sysone: error: ") and said in err and err.count("\n") == 1


def test_one_request(sysone: Run, tiny: Path, cache: Path):
    raw = json.dumps(EXAMPLE | {"request_id": "mine"}).encode()
    code, out, err = sysone("decide", "--model", tiny, "--max-model-len", "256", stdin=raw)
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    answer = json.loads(out)
    msgspec.json.decode(out, type=SystemOneResponse)
    assert (answer["id"], answer["model"]) == ("decision-mine", str(tiny))
    with loading.load(tiny, max_model_len=256) as decider:
        assert answer["answers"] == dict(decider.decide(**EXAMPLE))


def test_served_names_and_options(sysone: Run, tiny: Path):
    raw = json.dumps(SMALL | {"model": "two"}).encode()
    names = ["--served-model-name", "one", "two", "--model", tiny]
    code, out, _ = sysone("decide", *names, "--read-mode", "throughput", "--rendering", "reference", stdin=raw)
    assert code == 0
    assert (json.loads(out)["model"], json.loads(out)["read_mode"]) == ("one", "throughput")


def test_overlong_is_an_option_of_the_door(sysone: Run, tiny_joint: Path):
    raw = json.dumps(SMALL | {"state": "word " * 2000}).encode()
    arguments = ["decide", "--model", tiny_joint, "--max-model-len", "512"]
    code, out, err = sysone(*arguments, stdin=raw)
    assert (code, out) == (2, "") and "the state has" in err
    code, out, err = sysone(*arguments, "--overlong", "truncate", stdin=raw)
    assert (code, err) == (0, "") and json.loads(out)["usage"]["truncated_tokens"] > 0


def test_the_arithmetic_of_a_joint_head_is_an_option(sysone: Run, tiny: Path, tiny_joint: Path):
    raw = json.dumps(SMALL).encode()
    arguments = ["decide", "--max-model-len", "512", "--model"]
    plain, rounded = (
        json.loads(sysone(*arguments, tiny_joint, *more, stdin=raw)[1])["answers"]
        for more in ((), ("--head-dtype", "bfloat16"))
    )
    assert plain != rounded and plain.keys() == rounded.keys()
    code, out, err = sysone(*arguments, tiny, "--head-dtype", "bfloat16", stdin=raw)
    assert (code, out) == (2, "") and "head_dtype: this model has no joint head" in err


def test_a_terminal_gets_indented_json(tiny: Path, cache: Path):
    ours, theirs = pty.openpty()
    done = process("decide", "--model", tiny, cache=cache, stdin=subprocess.PIPE, stdout=theirs)
    _, said = done.communicate(json.dumps(SMALL).encode(), timeout=180)
    os.close(theirs)
    out = b""
    while piece := _read(ours):
        out += piece
    os.close(ours)
    assert (done.returncode, said) == (0, b"")
    assert out.startswith(b'{\r\n  "id": "decision-') and json.loads(out)["object"] == "structured_decision"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""


def test_a_reader_that_leaves_early(tiny: Path, cache: Path):
    done = process("decide", "--model", tiny, cache=cache, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stdin is not None
    done.stdin.write(json.dumps(SMALL).encode())
    done.stdin.close()
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait(180) == 141


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(sysone: Run, place: str):
    arguments = ["--debug", "inspect", "nowhere"] if place == "before" else ["inspect", "nowhere", "--debug"]
    code, _, err = sysone(*arguments)
    assert code == 2
    assert err.startswith("Traceback") and err.endswith("\n") and "sysone: error: no model 'nowhere'" in err


def test_a_failure_that_nobody_foresaw(sysone: Run, monkeypatch: pytest.MonkeyPatch):
    def fail(_: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(options, "load_model", fail)
    raw = json.dumps(SMALL).encode()
    line = "sysone: failed: RuntimeError: two lines (use --debug for the traceback)\n"
    assert sysone("decide", stdin=raw) == (1, "", line)
    assert sysone("decide", "--debug", stdin=raw)[2].startswith("Traceback")


def test_an_interrupt_is_quiet(sysone: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "load_model", interrupted)
    assert sysone("decide", stdin=json.dumps(SMALL).encode()) == (130, "", "")


def test_a_server_without_its_framework(sysone: Run, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] in ("serving", "litestar")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "litestar", None)
    line = "sysone: error: the server needs litestar; install it with: pip install 'sysone-jax[serve]'\n"
    assert sysone("serve") == (2, "", line)
    # A request on the command line needs no server.
    assert "no model 'nowhere'" in sysone("decide", "--model", "nowhere", stdin=json.dumps(SMALL).encode())[2]


def write_lines(path: Path, count: int) -> Path:
    bodies = (SMALL | {"state": f"number {number}"} for number in range(count))
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8")
    return path


def test_a_file_of_requests(sysone: Run, tiny: Path, tmp_path: Path):
    source, out = write_lines(tmp_path / "in", 3), tmp_path / "out"
    arguments = ["decide", "--model", tiny, "--max-model-len", "256", "--jsonl", source, "--out", out]
    assert sysone(*arguments) == (0, "", "")
    first = out.read_bytes()
    assert [json.loads(line)["index"] for line in first.splitlines()] == [0, 1, 2]
    assert sysone(*arguments) == (0, "", "")
    assert out.read_bytes() == first

    with source.open("ab") as file:
        file.write(b"\nnot json\n")
    line = f"sysone: error: 2 of 5 requests were refused; their lines in {out} say why\n"
    assert sysone(*arguments) == (2, "", line)
    assert out.read_bytes().startswith(first) and out.read_bytes().count(b"\n") == 5
    assert sysone(*arguments) == (2, "", line)

    other = write_lines(tmp_path / "other", 1)
    other.write_bytes(other.read_bytes().replace(b"0", b"9"))
    code, _, err = sysone("decide", "--model", tiny, "--jsonl", other, "--out", out)
    assert code == 2 and "line 1 is not the answer to that line of IN" in err and err.count("\n") == 1


def test_a_killed_run_is_finished_by_the_next(sysone: Run, tiny: Path, cache: Path, tmp_path: Path):
    source, out = write_lines(tmp_path / "in", 3000), tmp_path / "out"
    arguments = ["decide", "--model", tiny, "--max-model-len", "256", "--jsonl", source, "--out", out]
    killed = process(*arguments, cache=cache)
    deadline = time.monotonic() + 180
    while (not out.exists() or out.read_bytes().count(b"\n") < 5) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert killed.stderr is not None
    killed.stderr.close()
    left = out.read_bytes()
    assert 5 <= left.count(b"\n") < 3000
    assert sysone(*arguments) == (0, "", "")
    whole = out.read_bytes()
    assert whole.startswith(left[: left.rfind(b"\n") + 1])
    assert [json.loads(line)["index"] for line in whole.splitlines()] == list(range(3000))


def test_convert(sysone: Run, tiny: Path, tmp_path: Path):
    target = tmp_path / "new" / "converted"
    code, out, err = sysone("convert", tiny, target, "--dtype", "bfloat16")
    assert (code, out) == (0, "")
    assert err.startswith(f"sysone: {target}: Qwen3ForCausalLM, ") and err.count("\n") == 1
    assert set(map(str, checkpoint.stored_types(target).values())) == {"bfloat16"}
    assert json.loads(sysone("decide", "--model", target, stdin=json.dumps(SMALL).encode())[1])["model"] == str(target)

    assert sysone("convert", tiny, target) == (
        2,
        "",
        f"sysone: error: {target} exists; name a new folder, or delete it first\n",
    )
    code, _, err = sysone("convert", target, tmp_path / "again")
    assert code == 2 and "is converted already" in err and not (tmp_path / "again").exists()


def test_an_interrupted_conversion_leaves_nothing(
    sysone: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tokenizer, "save", interrupted)
    assert sysone("convert", tiny, tmp_path / "converted") == (130, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "strategy", "wide"),  # weights that are float32 under either type: a head, and parts of delta layers
    [("tiny", "labels", 0), ("tiny_joint", "joint_schema", None), ("tiny_codes", "answer_codes", 255 * 44 + 2 * 32)],
)
def test_inspect(
    sysone: Run,
    request: pytest.FixtureRequest,
    model: str,
    strategy: str,
    wide: int | None,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = request.getfixturevalue(model)
    with loading.load(folder, max_model_len=128) as decider:
        counts: list[int] = []

        def stop_after_one(done: int, of: int) -> None:
            counts.append(of)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            decider.warm(stop_after_one)
    monkeypatch.setattr(checkpoint, "load_arrays", None)  # no weight is read
    code, out, err = sysone("inspect", folder, "--json", "--max-model-len", "128")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["grid"]["programs"] == counts[0]
    assert facts["strategy"] == strategy and facts["limits"]["max_model_len"] == 128
    total = facts["parameters"].pop("total")
    assert total == sum(facts["parameters"].values())
    assert facts["source"] == str(folder) and facts["converter_version"] == checkpoint.CONVERTER_VERSION
    assert sum(facts["stored"].values()) == len(checkpoint.stored_types(Path(facts["folder"])))
    full, half = facts["memory"]["float32"], facts["memory"]["bfloat16"]
    assert full["weights_per_device"] == 4 * total
    wide = facts["parameters"]["head"] if wide is None else wide
    assert half["weights_per_device"] == 2 * total + 2 * wide
    assert full["largest_state"] == 2 * half["largest_state"] - (0 if strategy == "answer_codes" else 8)

    code, out, err = sysone("inspect", folder)
    assert (code, err) == (0, "")
    for said in (facts["architecture"], f"{total:,}", facts["source_revision"], "programs", "memory", "float32"):
        assert said in out
    assert max(map(len, out.splitlines())) < 200


def test_a_choice_is_averaged_over_both_orders_where_it_is_asked_for(sysone: Run, tiny: Path):
    body = json.dumps(
        {"state": "s", "questions": {"q": {"type": "choice", "criteria": {"a": None, "b": None}}}}
    ).encode()
    plain, averaged = (
        json.loads(sysone("decide", "--model", tiny, "--max-model-len", "128", *flag, stdin=body)[1])
        for flag in ((), ("--permutation-average",))
    )
    assert averaged["usage"]["output_tokens"] == 2 * plain["usage"]["output_tokens"]
    assert averaged["answers"]["q"]["probabilities"] != plain["answers"]["q"]["probabilities"]


def test_the_state_of_a_token_is_its_keys_and_values(sysone: Run, tiny: Path):
    facts = json.loads(sysone("inspect", tiny, "--json")[1])
    config = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert facts["memory"]["float32"]["state_per_token"] == 4 * numbers


def test_pull_keeps_what_is_there(sysone: Run, base_gguf: Path, monkeypatch: pytest.MonkeyPatch, cache: Path):
    copy = cache / "base" / base_gguf.name
    copy.parent.mkdir(exist_ok=True)
    copy.symlink_to(base_gguf)
    assert sysone("pull", "sysone-mini") == (0, "", f"sysone: sysone-mini: base weights in {copy}\n")
