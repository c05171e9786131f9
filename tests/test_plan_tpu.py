"""The memory plan of a TPU, from its own compiler, on a machine that has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_qwen3_5 import EXPERTS, TEXT

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "plan_tpu.py"
LIBRARY = Path(os.environ.get("TPU_LIBRARY_PATH") or ROOT / ".venv" / "libtpu" / "libtpu" / "libtpu.so")


def run(*arguments: Any, library: Path = LIBRARY) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TPU_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], env=environment, capture_output=True, text=True
    )


@pytest.mark.skipif(not LIBRARY.is_file(), reason="libtpu could not be installed")
def test_a_hybrid_of_experts_is_compiled_for_four_chips(tmp_path: Path):
    text = (
        TEXT
        | EXPERTS
        | {
            "vocab_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "tie_word_embeddings": False,
        }
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps(text | {"architectures": ["Qwen3_5MoeForCausalLM"]}))
    done = run(config, "--topology", "v5e-4", "--shortest", 256, "--longest", 256, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["largest_grid"], found["beyond"]) == (256, None)
    assert found["parameters"] / 4 * 2 < found["weights"] < found["parameters"] * 2, "some are split, in two bytes"
    prefill, read = found["programs"]
    assert (prefill["program"], read["program"]) == ("prefill 256", "read 32x64 after 256")
    keys_and_values = 2 * 4 * 256 * 32 * 2 // 4  # [K, S, H] of one layer, in bfloat16, a quarter on each chip
    assert prefill["left"] >= keys_and_values
    assert prefill["taken"] >= found["weights"] and read["taken"] >= found["weights"] + keys_and_values
    assert read["flops"] > prefill["flops"] > 0


def test_without_the_compiler_it_says_where_it_comes_from(tmp_path: Path):
    done = run(tmp_path, library=tmp_path / "none")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "plan_tpu: libtpu is not here; scripts/test --setup fetches it into .venv/libtpu\n"
