#!/usr/bin/env python
"""How fast a request is answered, against transformers on torch with the same weights in the same run.

    .venv/bin/python scripts/bench_read.py [--rounds N] [--questions 8] [--state 512] [--suffix 48]

The model has SmolLM2-135M's shape and random weights; nothing is fetched. Every contender answers the same request once
a round, in a new order, so that what else the machine does, and what the one before left behind, falls on all of them
alike: the ratios are taken within rounds, and given as median and range. They mean something on a machine that does
nothing else: torch's threads wait for one another and fall far behind when something takes a core from them. What is
measured runs from token ids to probabilities on the host. Before that, both sides' logits are compared; the script
fails when they differ.

    ours             prefix state, then the calls that a request of these lengths makes, for each type and read mode
    torch, shared    the state once into a DynamicCache, repeated for every question, one batch of questions
    torch, unshared  every question as a prompt of its own
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from converters.convert import assigned
from sysone_jax import sharding
from sysone_jax.answers import softmax
from sysone_jax.checkpoint import Manifest
from sysone_jax.loading import PREFIX_CACHE_BYTES, arranged
from sysone_jax.model import abstract_model
from sysone_jax.prompts.labels import LabelPrompt
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import Grid
from sysone_jax.reader.rows import fill_rows, plan_calls

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LABELS = (330, 378, 340, 407)
MATRIX_PARAMETERS = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)

Contender = Callable[[], np.ndarray]


class StateDict:
    """A torch model's tensors, as the converters read a checkpoint."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        return self._tensors[name].float().numpy()


class Ours:
    """An engine with the weights of a torch model, and requests as ids."""

    def __init__(self, model: LlamaForCausalLM, dtype: str) -> None:
        manifest = Manifest("LlamaForCausalLM", CONFIG, None, "random weights", "0")
        mesh = sharding.make_mesh()
        ours = abstract_model(manifest, np.dtype(dtype))
        places = sharding.shardings(ours, mesh)
        arrays = {
            path: jax.device_put(array, places[path])
            for path, array in assigned(manifest, StateDict(model), None, dtype)
        }
        self._engine = Engine(
            arranged(sharding.fill(ours, arrays), mesh, dtype),
            mesh,
            Grid.of(CONFIG["max_position_embeddings"], jax.default_backend(), dtype),
            precision="highest" if dtype == "float32" else "default",
            prefix_cache_bytes=PREFIX_CACHE_BYTES,
        )
        self._reads = 0

    def answer(self, state: list[int], questions: list[list[int]], read_mode: str) -> np.ndarray:
        """Label logits [Q, O] of questions about one state, which no earlier read has left in the cache."""
        self._reads += 1
        prompts = [LabelPrompt((*state, *question), len(state), LABELS) for question in questions]
        return self._engine.submit(lambda: self._answer(prompts, self._reads, read_mode)).result()

    def one_by_one(self, state: list[int], questions: list[list[int]]) -> np.ndarray:
        """The same without sharing: every question reads the state again."""
        return np.concatenate([self.answer(state, [question], "throughput") for question in questions])

    def _answer(self, prompts: list[LabelPrompt], salt: int, read_mode: str) -> np.ndarray:
        logits = np.empty((len(prompts), len(LABELS)))
        for call in plan_calls(prompts, self._engine.grid, read_mode):
            result = self._engine.read_labels(self._engine.prefix_state(call.prefix, salt), fill_rows(prompts, call))
            for slot, number in enumerate(call.questions):
                logits[number] = result.labels[slot, : len(LABELS)]
                softmax(logits[number])
        return logits


@torch.inference_mode()
def torch_shared(model: LlamaForCausalLM, state: list[int], questions: list[list[int]]) -> np.ndarray:
    cache = DynamicCache(config=model.config)
    model.model(torch.tensor([state]), cache=cache, use_cache=True)
    cache.batch_repeat_interleave(len(questions))
    return _labels(model.lm_head(model.model(torch.tensor(questions), cache=cache).last_hidden_state[:, -1]))


@torch.inference_mode()
def torch_unshared(model: LlamaForCausalLM, state: list[int], questions: list[list[int]]) -> np.ndarray:
    logits = [
        model.lm_head(model.model(torch.tensor([[*state, *question]]), use_cache=False).last_hidden_state[:, -1])
        for question in questions
    ]
    return _labels(torch.cat(logits))


def _labels(logits: torch.Tensor) -> np.ndarray:
    torch.softmax(logits.float(), dim=-1)
    return logits[:, list(LABELS)].double().numpy()


PAUSE = 0.5
"""Seconds before each turn: threads that the last contender left spinning take a core from the next."""


def race(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contender in every round; the first round, which compiles, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    shuffle = np.random.default_rng(0).permutation
    for turn in range(rounds + 1):
        for name in shuffle(list(contenders)):
            time.sleep(PAUSE)
            start = time.perf_counter()
            contenders[name]()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(slower: list[float], faster: list[float]) -> str:
    ratios = sorted(slow / fast for slow, fast in zip(slower, faster, strict=True))
    return f"{statistics.median(ratios):5.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def best(seconds: Mapping[str, list[float]], *prefixes: str) -> str:
    """The contender with the lowest median among those whose name starts with one of ``prefixes``."""
    names = [name for name in seconds if name.startswith(prefixes)]
    return min(names, key=lambda name: statistics.median(seconds[name]))


def matmul_rates() -> dict[str, float]:
    """FLOP/s of one large product, bfloat16 summed in float32 on our side as everywhere in this project."""
    size, flops = 1536, 2 * 1536**3
    rates = {}
    for name, dtype in DTYPES.items():
        a = jnp.ones((size, size), name)
        ours = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
        t = torch.ones(size, size, dtype=dtype)
        runs = {f"ours {name}": lambda f=ours, a=a: f(a, a).block_until_ready(), f"torch {name}": lambda t=t: t @ t.T}
        rates |= {who: flops / min(times) for who, times in race(runs, 15).items()}
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of every contender")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--state", type=int, default=512, help="tokens of the state")
    parser.add_argument("--suffix", type=int, default=48, help="tokens of each question")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)

    theirs = {"float32": LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()}
    theirs["bfloat16"] = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.bfloat16).eval()
    theirs["bfloat16"].load_state_dict(theirs["float32"].state_dict())
    ours = {dtype: Ours(theirs["float32"], dtype) for dtype in DTYPES}
    rng = np.random.default_rng(0)
    state = rng.integers(CONFIG["vocab_size"], size=args.state).tolist()
    questions = rng.integers(CONFIG["vocab_size"], size=(args.questions, args.suffix)).tolist()

    contenders: dict[str, Contender] = {}
    for dtype in DTYPES:
        for mode in ("exact", "throughput"):
            contenders[f"ours {mode} {dtype}"] = lambda d=dtype, m=mode: ours[d].answer(state, questions, m)
        contenders[f"torch shared {dtype}"] = lambda d=dtype: torch_shared(theirs[d], state, questions)
        contenders[f"torch unshared {dtype}"] = lambda d=dtype: torch_unshared(theirs[d], state, questions)

    reference = contenders["torch unshared float32"]()
    print("largest difference of a label's logit from torch float32 without sharing, of the largest logit:")
    for name, run in contenders.items():
        off = np.abs(run() - reference).max() / np.abs(reference).max()
        print(f"  {name:28} {off:.1e}")
        if name.endswith("float32") and off > 5e-5:
            raise SystemExit(f"{name} does not agree")

    print(
        f"\n{args.state}-token state, {args.questions} questions of {args.suffix} tokens; median and range of seconds:"
    )
    slow = {name: run for name, run in contenders.items() if name.startswith("torch unshared")}
    seconds = race({name: run for name, run in contenders.items() if name not in slow}, args.rounds)
    headline = best(seconds, "ours exact")
    beside_slow = race({headline: contenders[headline], **slow}, max(2, args.rounds // 3))
    for name, times in {**beside_slow, **seconds}.items():
        print(f"  {name:28} {statistics.median(times):.3f}  ({min(times):.3f} to {max(times):.3f})")

    print(f"\ntimes faster, {headline} (median and range over rounds):")
    for rival, raced in (("torch shared", seconds), ("torch unshared", beside_slow)):
        name = best(raced, rival)
        print(f"  than {name:26} {ratio(raced[name], raced[headline])}")

    print("\nmatrix product, GFLOP/s, and what the request's products would take at that rate:")
    flops = 2 * MATRIX_PARAMETERS * (args.state + args.questions * args.suffix)
    for name, rate in matmul_rates().items():
        who, dtype = name.split()
        took = statistics.median(seconds[f"ours exact {dtype}" if who == "ours" else f"torch shared {dtype}"])
        print(
            f"  {name:28} {rate / 1e9:6.0f}  {flops / rate:.3f} s, took {took:.3f} s: {flops / rate / took:.0%} of it"
        )

    state = rng.integers(CONFIG["vocab_size"], size=1024).tolist()
    questions = rng.integers(CONFIG["vocab_size"], size=(16, args.suffix)).tolist()
    print(f"\nsharing: 1024-token state, 16 questions of {args.suffix} tokens, at once against one by one:")
    for dtype in DTYPES:
        pair = {
            "at once": lambda d=dtype: ours[d].answer(state, questions, "exact"),
            "one by one": lambda d=dtype: ours[d].one_by_one(state, questions),
        }
        seconds = race(pair, max(2, args.rounds // 3))
        print(f"  {dtype:28} {ratio(seconds['one by one'], seconds['at once'])}")


if __name__ == "__main__":
    main()
