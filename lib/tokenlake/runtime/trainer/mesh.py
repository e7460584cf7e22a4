"""The mesh of devices, and how batches and parameters are cut over it.

Devices are a mesh of three axes. Rows of a batch are cut over ``data`` and ``fsdp``. Parameters are cut over ``tensor``
as rules say, and over ``fsdp`` along the largest remaining dimension that can be cut (Rajbhandari et al. 2020: stage
3). XLA's partitioner adds the communication; a model is written as for one device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tokenlake.errors import ConfigError
from tokenlake.runtime.trainer.config import MeshConfig
from tokenlake.runtime.trainer.fingerprint import path_name
from tokenlake.runtime.trainer.losses import Params
from tokenlake.runtime.trainer.step import AXES

_ROWS: Final = PartitionSpec(("data", "fsdp"))


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of all devices of all processes, or of those given.

    Raises:
        ConfigError: the axes do not make up the devices.
    """
    found = jax.devices() if devices is None else devices
    rest = config.fsdp * config.tensor
    data = config.data or max(1, len(found) // rest)
    if data * rest != len(found):
        raise ConfigError(
            f"mesh: got data {data}, fsdp {config.fsdp} and tensor {config.tensor}, which are {data * rest} devices; "
            f"expected a product of {len(found)}, as many as there are"
        )
    return Mesh(np.array(found, dtype=object).reshape(data, config.fsdp, config.tensor), AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return where the rows of a batch lie: what ``tl.DataLoader(sharding=...)`` is given."""
    return NamedSharding(mesh, _ROWS)


def param_shardings(
    params: Params, mesh: Mesh, rules: Mapping[str, Sequence[str | None]] | None = None
) -> Any:
    """Return the sharding of each parameter, a pytree like `params`.

    Args:
        params: arrays or their shapes.
        mesh: of :func:`make_mesh`.
        rules: regular expression of a path, as ``layers/up`` -> axis of each dimension; the first that is found counts.

    Raises:
        ConfigError: a rule fits no parameter, names more dimensions than there are, or cuts one into unequal parts;
            or there is a tensor axis and no rule uses it.
    """
    rules = rules or {}
    named = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    for pattern in rules:
        if not any(re.search(pattern, name) for name in named):
            raise ConfigError(f"mesh.rules: {pattern!r} fits no parameter; there are {', '.join(named)}")
    if mesh.shape["tensor"] > 1 and not any("tensor" in axes for axes in rules.values()):
        why = f"got {mesh.shape['tensor']}, and no rule says which dimensions to cut"
        raise ConfigError(f"mesh.tensor: {why}; expected mesh.rules, as {{'up': [null, tensor]}}")

    def placed(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, _spec(path_name(path), leaf.shape, mesh, rules))

    return jax.tree_util.tree_map_with_path(placed, params)


def _spec(
    name: str, shape: tuple[int, ...], mesh: Mesh, rules: Mapping[str, Sequence[str | None]]
) -> PartitionSpec:
    pattern = next((pattern for pattern in rules if re.search(pattern, name)), None)
    axes: list[str | None] = [] if pattern is None else list(rules[pattern])
    axes += [None] * (len(shape) - len(axes))
    cuts = [size % mesh.shape[axis] for axis, size in zip(axes, shape, strict=False) if axis is not None]
    if len(axes) > len(shape) or any(cuts):
        why = f"{pattern!r} cuts {name} of shape {shape} along {axes}"
        wanted = f"at most {len(shape)} axes, each dividing its dimension, of {dict(mesh.shape)}"
        raise ConfigError(f"mesh.rules: {why}; expected {wanted}")
    parts = mesh.shape["fsdp"]
    free = [at for at, axis in enumerate(axes) if axis is None and shape[at] and shape[at] % parts == 0]
    if parts > 1 and free and "fsdp" not in axes:
        axes[max(free, key=lambda at: shape[at])] = "fsdp"
    return PartitionSpec(*axes)
