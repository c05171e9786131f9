#!/usr/bin/env python
"""What a model needs on TPUs that are not here: the memory plan of its programs, from the TPU's own compiler.

    .venv/bin/python scripts/plan_tpu.py CONFIG [CONFIG ...] [--topology v5e-16 v6e-8] [--longest 16384]

A CONFIG is a `config.json`, or a folder that holds one and, for models with a head of their own, the head's config. No
weight is read and no TPU is asked for: libtpu compiles for a topology on any Linux machine. It is looked for in
the path that TPU_LIBRARY_PATH names; else in `.venv/libtpu`, where `scripts/test --setup` puts it, and the packages.

For every topology the grid is doubled, from 2,048 tokens to `--longest`, as long as its programs fit; those of the
largest that does are shown. A number is per device: what a program takes (weights and states), what it leaves, what it
needs meanwhile, and the work it does. `fits` counts these, its code, and the prefix states that are kept between
requests, against the device's memory less what the runtime keeps to itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30


@dataclass(frozen=True)
class Topology:
    """Chips of one kind, as libtpu names them, all on the mesh's ``model`` axis; ``memory`` in bytes of one chip."""

    chips: str
    generation: str
    memory: int


TOPOLOGIES = {
    "v5e-4": Topology("v5e:2x2", "v5litepod-4", 16 * GIB),
    "v5e-8": Topology("v5e:2x4", "v5litepod-8", 16 * GIB),
    "v5e-16": Topology("v5e:4x4", "v5litepod-16", 16 * GIB),
    "v6e-4": Topology("v6e:2x2", "v6e-4", 32 * GIB),
    "v6e-8": Topology("v6e:2x4", "v6e-8", 32 * GIB),
}
RUNTIME = GIB // 2
"""Memory of a chip that programs cannot have."""

SHORTEST = 2048


@dataclass(frozen=True)
class Need:
    """One program on one device, in bytes and floating-point operations."""

    program: str
    taken: int
    left: int
    meanwhile: int
    code: int
    flops: float
    seconds: float

    @property
    def peak(self) -> int:
        return self.taken + self.left + self.meanwhile + self.code


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("configs", metavar="CONFIG", type=Path, nargs="+", help="a config.json, or a folder with one")
    parser.add_argument("--topology", nargs="+", choices=TOPOLOGIES, default=["v5e-16", "v6e-8"])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the backbone")
    parser.add_argument("--shortest", type=int, default=SHORTEST, help="tokens of the smallest grid that is tried")
    parser.add_argument("--longest", type=int, default=16384, help="tokens of the largest")
    parser.add_argument("--json", action="store_true", help="the same numbers, one JSON object a line")
    args = parser.parse_args()
    library = find_libtpu()
    if library is None:
        print("plan_tpu: libtpu is not here; scripts/test --setup fetches it into .venv/libtpu", file=sys.stderr)
        return 2
    # read when jax is first imported; the machine's own device stays out of it
    os.environ.update(JAX_PLATFORMS="cpu", TPU_LIBRARY_PATH=str(library), TPU_SKIP_MDS_QUERY="1")
    os.environ.update(TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE=TOPOLOGIES[args.topology[0]].generation)
    for config in args.configs:
        for name in args.topology:
            show(plan(config, name, args.dtype, args.shortest, args.longest), args.json)
    return 0


def find_libtpu() -> Path | None:
    """The library that compiles for TPUs."""
    if named := os.environ.get("TPU_LIBRARY_PATH"):
        place = Path(named)
    else:
        place = ROOT / ".venv" / "libtpu" / "libtpu" / "libtpu.so"
        if not place.is_file():
            with contextlib.suppress(ImportError):
                import libtpu

                place = Path(libtpu.get_library_path())
    return place if place.is_file() else None


def plan(config: Path, topology: str, dtype: str, shortest: int, longest: int) -> dict[str, Any]:
    """The largest grid of a model that fits, and the needs of its largest programs."""
    from sysone_jax.loading import PREFIX_CACHE_BYTES, prompt_limit
    from sysone_jax.sharding import leaves

    manifest = read_manifest(config)
    mesh, model = placed(manifest, TOPOLOGIES[topology], dtype)
    weights = sum(
        variable.dtype.itemsize * math.prod(variable.get_value().sharding.shard_shape(variable.shape))
        for _, variable in leaves(model)
    )
    room = TOPOLOGIES[topology].memory - RUNTIME - PREFIX_CACHE_BYTES
    most = prompt_limit(manifest, None, most=longest)
    needs: list[Need] = []
    reached, refused = 0, None
    size = min(shortest, most)
    while True:
        tried = [need(program, mesh) for program in largest_programs(model, mesh, size, dtype)]
        refused = next((each for each in tried if isinstance(each, str)), None)
        if refused is None and max(each.peak for each in tried) > room:
            refused = f"{size:,} tokens need {max(each.peak for each in tried) / GIB:.2f} GiB"
        if refused is not None:
            break
        needs, reached = tried, size
        if size >= most:
            break
        size = min(2 * size, most)
    return {
        "model": str(config),
        "architecture": manifest.architecture,
        "topology": topology,
        "dtype": dtype,
        "parameters": sum(math.prod(variable.shape) for _, variable in leaves(model)),
        "weights": weights,
        "memory": TOPOLOGIES[topology].memory,
        "kept_states": PREFIX_CACHE_BYTES,
        "largest_grid": reached,
        "beyond": refused,
        "programs": [asdict(each) | {"peak": each.peak} for each in needs],
    }


def read_manifest(config: Path) -> Any:
    """What a checkpoint's configs say, as a converted folder's manifest would."""
    from sysone_jax.checkpoint import Manifest
    from sysone_jax.config import read_json

    folder = config if config.is_dir() else None
    numbers = read_json(config / "config.json" if folder else config)

    def beside(name: str) -> dict[str, Any] | None:
        return read_json(folder / name) if folder and (folder / name).exists() else None

    return Manifest(
        architecture=numbers["architectures"][0],
        config=numbers,
        head=beside("joint_head_config.json"),
        decision=beside("decision_config.json"),
        source=str(config),
        source_revision="config",
        vision=isinstance(numbers.get("vision_config"), dict),
    )


def placed(manifest: Any, topology: Topology, dtype: str) -> tuple[Any, Any]:
    """The mesh of a topology, and the model as shapes that lie on it."""
    import numpy as np
    from jax.experimental import topologies

    from sysone_jax import sharding
    from sysone_jax.model import abstract_model

    chips = np.array(topologies.get_topology_desc(topology.chips, platform="tpu").devices)
    mesh = sharding.mesh_of(chips.reshape(1, -1))
    return mesh, sharding.on_mesh(abstract_model(manifest, np.dtype(dtype)), mesh)


def largest_programs(model: Any, mesh: Any, size: int, dtype: str) -> list[Any]:
    """Of a grid of ``size`` tokens, those that need the most: the longest prefix or prompt, with media where there
    are any, the longest frame, and the most rows of questions after the longest prefix."""
    import dataclasses

    from sysone_jax.reader.grid import Grid
    from sysone_jax.reader.lowering import grid_programs

    merge = 0 if model.tower is None else model.tower.config.merge**2
    whole = Grid.of(size, "tpu", dtype, merge, min(size, 4096) if merge else None)
    grid = dataclasses.replace(
        whole,
        prefix=whole.prefix[-1:],
        room=whole.room[-1:],
        suffix=(64,),
        continued=whole.continued[-1:],
        media=whole.media[-1:],
        patches=whole.patches[-1:],
    )
    return grid_programs(model, mesh, grid, "exact")


def need(program: Any, mesh: Any) -> Need | str:
    """What a program needs, or the compiler's word that it is too much."""
    import jax

    started = time.monotonic()
    with jax.set_mesh(mesh), jax.default_matmul_precision("default"):
        lowered = program.lower()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return f"{program.name}: {str(error).splitlines()[0][:200]}"
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    return Need(
        program=program.name,
        taken=memory.argument_size_in_bytes,
        left=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        meanwhile=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=cost["flops"],
        seconds=time.monotonic() - started,
    )


def show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found), flush=True)
        return
    print(f"\n{found['model']}: {found['architecture']}, {found['parameters']:,} parameters, {found['dtype']}")
    print(
        f"{found['topology']}: {found['weights'] / GIB:.2f} GiB of weights on each device of "
        f"{found['memory'] / GIB:.0f} GiB; {found['kept_states'] / GIB:.2f} GiB for states that are kept"
    )
    if not found["largest_grid"]:
        print("does not fit")
    else:
        print(f"largest grid that fits: {found['largest_grid']:,} tokens")
    if found["beyond"]:
        print(f"beyond it: {found['beyond']}")
    if found["programs"]:
        heads = f"{'takes':>10}{'leaves':>10}{'meanwhile':>11}{'peak':>10}  GiB{'Tflop':>9}{'compiled':>11}"
        print(f"  {'program':<28}{heads}")
    for each in found["programs"]:
        sizes = "".join(
            f"{each[part] / GIB:>{width}.2f}"
            for part, width in (("taken", 10), ("left", 10), ("meanwhile", 11), ("peak", 10))
        )
        print(f"  {each['program']:<28}{sizes}     {each['flops'] / 1e12:>9.2f}{each['seconds']:>9.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
