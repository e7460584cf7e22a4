"""The mesh of devices, and the shardings of batches and parameters over it.

The mesh has three axes, ``data``, ``fsdp`` and ``tensor``, and with context parallelism
a fourth one, ``context``. Rows of a batch are cut over ``data`` and ``fsdp``, and the
ids of a row over ``context``. Parameters are cut over ``tensor`` by rules, and over
``fsdp`` along the largest remaining dimension that it divides (Rajbhandari et al. 2020:
stage 3). XLA's partitioner adds the communication; a model is written as for one
device.

For example, on a mesh of data 1, fsdp 2, tensor 2, with the rule ``up: [null, null,
tensor]``, an array ``up`` of shape (3, 4, 6) has the spec (None, fsdp, tensor): each
device holds a part of shape (3, 2, 3).
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

_ROW_AXES: Final = ("data", "fsdp")
"""Axes over which the rows of a batch are cut."""


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of devices that a configuration describes.

    Args:
        config: Section `mesh` of a configuration.
        devices: Devices of the mesh; None: all devices of all processes.

    Raises:
        ConfigError: The product of the axes is not the number of devices.

    Example:
        >>> import jax
        >>> import tokenlake as tl
        >>> from tokenlake.trainer import make_mesh
        >>> mesh = make_mesh(tl.TrainingConfig().mesh)
        >>> mesh.size == jax.device_count()
        True
    """
    if devices is None:
        devices = jax.devices()
    # Without a number, `data` takes the devices that the other axes leave.
    count = len(devices)
    devices_of_row_part = config.fsdp * config.context * config.tensor
    data = config.data or max(1, count // devices_of_row_part)
    sizes = {
        "data": data,
        "fsdp": config.fsdp,
        "context": config.context,
        "tensor": config.tensor,
    }
    if data * devices_of_row_part != count:
        listed = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise ConfigError(
            f"mesh: got {listed}, which are {data * devices_of_row_part} devices; expected a product of {count}, as "
            "many as there are"
        )
    # Without context parallelism, specs of parameters and batches do not name the axis.
    if config.context == 1:
        del sizes["context"]
    return Mesh(np.array(devices, dtype=object).reshape(*sizes.values()), tuple(sizes))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch, for ``tl.DataLoader(sharding=...)``.

    It cuts rows, and with an axis ``context`` also their ids.

    Args:
        mesh: Mesh of :func:`make_mesh`.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.trainer import batch_sharding, make_mesh
        >>> sharding = batch_sharding(make_mesh(tl.TrainingConfig().mesh))
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8, sharding=sharding)
        >>> next(iter(loader))["input_ids"].sharding == sharding
        True
    """
    if "context" in mesh.shape:
        return NamedSharding(mesh, PartitionSpec(_ROW_AXES, "context"))
    return row_sharding(mesh)


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a column with one value for each row."""
    return NamedSharding(mesh, PartitionSpec(_ROW_AXES))


def param_shardings(
    params: Params, mesh: Mesh, rules: Mapping[str, Sequence[str | None]] | None = None
) -> Any:
    """Return the sharding of each parameter, a pytree like `params`.

    Args:
        params: Pytree of arrays, or of their shapes.
        mesh: Mesh of :func:`make_mesh`.
        rules: Regular expression of a path, such as ``layers/up`` -> axis of each
            dimension. The first rule that matches a path applies.

    Raises:
        ConfigError: A rule matches no parameter, names more dimensions than there are,
            or cuts one into unequal parts; or there is a tensor axis and no rule uses
            it.
    """
    rules = rules or {}
    leaves = jax.tree_util.tree_leaves_with_path(params)
    param_names = [path_name(path) for path, _ in leaves]
    # A rule without effect is a misspelled path, and would leave a large array on every
    # device.
    for pattern in rules:
        if not any(re.search(pattern, param_name) for param_name in param_names):
            raise ConfigError(
                f"mesh.rules: {pattern!r} fits no parameter; there are {', '.join(param_names)}"
            )
    # Devices of an axis that nothing uses would all compute the same.
    is_tensor_used = any("tensor" in axes for axes in rules.values())
    if mesh.shape["tensor"] > 1 and not is_tensor_used:
        raise ConfigError(
            f"mesh.tensor: got {mesh.shape['tensor']}, and no rule says which dimensions to cut; expected mesh.rules, "
            "such as {'up': [null, tensor]}"
        )

    def placed(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, _spec(path_name(path), leaf.shape, mesh, rules))

    return jax.tree_util.tree_map_with_path(placed, params)


def _spec(
    name: str,
    shape: tuple[int, ...],
    mesh: Mesh,
    rules: Mapping[str, Sequence[str | None]],
) -> PartitionSpec:
    """Return the axis over which each dimension of a parameter is cut.

    1. Take the axes of the first rule that matches the name; other dimensions have
       none.
    2. Check that there are not too many, and that each divides its dimension.
    3. Cut the largest dimension that is left, and that ``fsdp`` divides, over ``fsdp``.
    """
    # 1. The axes of the first rule that matches.
    axes: list[str | None] = []
    pattern = next((pattern for pattern in rules if re.search(pattern, name)), None)
    if pattern is not None:
        axes.extend(rules[pattern])
    axes.extend([None] * (len(shape) - len(axes)))

    # 2. All devices hold parts of the same shape.
    is_divisible = all(
        axis is None or dimension_size % mesh.shape[axis] == 0
        for axis, dimension_size in zip(axes, shape, strict=False)
    )
    if len(axes) > len(shape) or not is_divisible:
        raise ConfigError(
            f"mesh.rules: {pattern!r} cuts {name} of shape {shape} along {axes}; expected at most {len(shape)} axes, "
            f"each dividing its dimension, of {dict(mesh.shape)}"
        )

    # 3. The largest dimension saves the most memory. Small parameters stay whole, where
    #    none divides.
    fsdp = mesh.shape["fsdp"]
    if fsdp > 1 and "fsdp" not in axes:
        largest: int | None = None
        for dimension, dimension_size in enumerate(shape):
            is_divisible = dimension_size > 0 and dimension_size % fsdp == 0
            can_be_cut = is_divisible and axes[dimension] is None
            if can_be_cut and (largest is None or dimension_size > shape[largest]):
                largest = dimension
        if largest is not None:
            axes[largest] = "fsdp"
    return PartitionSpec(*axes)
