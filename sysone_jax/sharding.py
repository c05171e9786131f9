"""Where weights live: logical axes, the mesh, and the rule that joins them.

A weight names its axes once, by the project's alphabet (``embed``, ``heads``, ``kv_heads``, ``head_dim``, ``mlp``,
``vocab``); no model code names a mesh axis. The mesh is ``(data, model)`` with explicit axis types and always there:
one device is a 1x1 mesh and runs the same code. A mesh context is thread-local, so only the engine's thread enters it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sysone_jax.errors import InputError

M = TypeVar("M", bound=nnx.Module)

SEVERAL, IN_ORDER = "--xla_force_host_platform_device_count", "--xla_cpu_enable_concurrency_optimized_scheduler"
if SEVERAL in os.environ.get("XLA_FLAGS", "") and IN_ORDER not in os.environ["XLA_FLAGS"]:
    # Devices made of one processor's threads wait for one another in collectives; out of order they may wait for ever.
    os.environ["XLA_FLAGS"] += f" {IN_ORDER}=false"

AXES = ("data", "model")

TENSOR_PARALLEL = {
    "heads": "heads",
    "kv_heads": "heads",
    "delta_k_heads": "delta",
    "delta_v_heads": "delta",
    "mlp": "mlp",
    "experts": "experts",
    "expert_mlp": "expert_mlp",
    "vocab": "vocab",
}
"""Logical axis -> the group that is split over the mesh's ``model`` axis together. All other axes are replicated."""


def weight(shape: tuple[int, ...], axes: tuple[str, ...], dtype: jnp.dtype) -> nnx.Param:
    """A parameter of ``shape`` whose dimensions are the logical ``axes``; modules are only ever built abstractly."""
    if len(shape) != len(axes):
        raise ValueError(f"shape {shape} and axes {axes} differ in length")
    return nnx.Param(jnp.zeros(shape, dtype), axes=axes)


def abstract(build: Callable[[], M]) -> M:
    """The module that ``build`` makes, with shapes in place of arrays: no memory is touched."""
    return jax.eval_shape(build)


def make_mesh(shape: tuple[int, int] | None = None) -> Mesh:
    """A ``(data, model)`` mesh of the given shape.

    None takes all local devices on ``model``; on a CPU, whose devices share one processor, it takes one.
    """
    devices = jax.local_devices()
    data, model = shape or (1, 1 if devices[0].platform == "cpu" else len(devices))
    count = data * model
    if data < 1 or model < 1 or count > len(devices):
        raise InputError(f"mesh: {data}x{model} needs {count} devices; this machine has {len(devices)}", field="mesh")
    return jax.make_mesh((data, model), AXES, axis_types=(AxisType.Explicit,) * 2, devices=devices[:count])


def mesh_of(devices: np.ndarray) -> Mesh:
    """The mesh of devices as they stand, [data, model]; they need not be of this machine."""
    return Mesh(devices, AXES, axis_types=(AxisType.Explicit,) * 2)


def leaves(module: nnx.Module) -> Iterator[tuple[str, nnx.Variable]]:
    """Every weight of a module as (``layers/attention/q``, variable), in a stable order."""
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        yield "/".join(map(str, path)), variable


def fill(module: M, arrays: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> M:
    """The module with each weight replaced by the array of its path."""
    graph, state = nnx.split(module)
    flat = [(path, variable.replace(arrays["/".join(map(str, path))])) for path, variable in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(flat))


def on_mesh(module: M, mesh: Mesh) -> M:
    """An abstract module with every shape where its weight would lie: enough to trace and compile by."""
    places = shardings(module, mesh)
    shapes = {
        path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=places[path]) for path, leaf in leaves(module)
    }
    return fill(module, shapes)


def shardings(module: nnx.Module, mesh: Mesh) -> dict[str, NamedSharding]:
    """Path -> sharding of every weight.

    A group of axes is split over ``model`` when every dimension in it divides evenly; otherwise it is replicated, so
    query heads never part from their key heads. A weight is split along the first of its axes that can be: experts go
    whole to their devices where their number divides, and are split in their width where it does not. Leading
    dimensions that a weight's ``axes`` do not name are stacked layers and are never split.
    """
    ways = mesh.shape["model"]
    sizes: dict[str, set[int]] = {}
    for _, variable in leaves(module):
        axes = variable.get_metadata()["axes"]
        for axis, size in zip(reversed(axes), reversed(variable.shape), strict=False):
            if axis in TENSOR_PARALLEL:
                sizes.setdefault(TENSOR_PARALLEL[axis], set()).add(size)
    split = {group for group, dims in sizes.items() if ways > 1 and all(size % ways == 0 for size in dims)}

    def spec(variable: nnx.Variable) -> P:
        axes = variable.get_metadata()["axes"]
        along = next((axis for axis in axes if TENSOR_PARALLEL.get(axis) in split), None)
        stacked = [None] * (len(variable.shape) - len(axes))
        return P(*stacked, *("model" if axis == along else None for axis in axes))

    return {path: NamedSharding(mesh, spec(variable)) for path, variable in leaves(module)}
