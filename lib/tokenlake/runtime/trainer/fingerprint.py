"""Fingerprints of arrays, by which a checkpoint is checked when it is read.

The fingerprint of an array is two sums modulo 2**32, one for each of two seeds s::

    sum over i of  mix(word[i] XOR mix(i + s))

``word[i]`` holds the bits of element i, in row-major order (a 64-bit element has two
words). ``mix`` is the finalizer of MurmurHash3 (Appleby 2011), a bijection of 32-bit
numbers in which each bit of the input changes about half of the output. A sum does not
depend on its order, so the fingerprint is the same for every way to cut an array over
devices. Accidental damage goes unnoticed with a probability of about 2**-64 per array.

The computation runs on the devices, reads each array once and needs no memory of its
size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

# One for each half of a fingerprint. Checkpoints record fingerprints, so that the seeds
# never change.
_SEEDS: Final = (0x9E3779B9, 0x7F4A7C15)
_UNSIGNED: Final = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
"""Bytes of an element -> type as which its bits are read; an element of 8 bytes
gives two numbers.
"""


class ArrayFacts(NamedTuple):
    """Facts of one array of a checkpoint.

    Attributes:
        shape: Number of elements along each dimension.
        dtype: Name of the type, such as ``float32``.
        fingerprint: Fingerprint, 16 hexadecimal digits.
        is_finite: True if no element is NaN or infinite; always True for integers.
    """

    shape: tuple[int, ...]
    dtype: str
    fingerprint: str
    is_finite: bool


def path_name(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as text: ``layers/norm_1``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def array_facts(tree: Any) -> dict[str, ArrayFacts]:
    """Return path -> facts of the arrays of a pytree; waits for the devices once."""
    # All arrays are summed before the first result is waited for.
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    summaries = jax.device_get([_compiled(leaf.sharding)(leaf) for _, leaf in leaves])
    facts: dict[str, ArrayFacts] = {}
    for (path, leaf), (sums, is_finite) in zip(leaves, summaries, strict=True):
        digits = "".join(f"{int(value):08x}" for value in sums)
        facts[path_name(path)] = ArrayFacts(
            tuple(leaf.shape), str(leaf.dtype), digits, bool(is_finite)
        )
    return facts


@lru_cache
def _compiled(
    sharding: jax.sharding.Sharding,
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Return :func:`_summary`, compiled for arrays of a sharding.

    Its results are on all devices of all processes.
    """
    # Every process needs the result, also those whose devices hold no part of the
    # array.
    if isinstance(sharding, NamedSharding):
        return jax.jit(
            _summary, out_shardings=NamedSharding(sharding.mesh, PartitionSpec())
        )
    return jax.jit(_summary)


def _summary(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two sums, uint32[2], and whether all elements are finite, bool[]."""
    # The index is mixed in, so that two elements that change places change the sum.
    words = _words(leaf)
    indices = _indices(words.shape)
    sums: list[jax.Array] = []
    for seed in _SEEDS:
        mixed = _mix(words ^ _mix(indices + np.uint32(seed)))
        sums.append(jnp.sum(mixed, dtype=jnp.uint32))
    return jnp.stack(sums), _is_finite(leaf)


def _words(leaf: jax.Array) -> jax.Array:
    """Return the bits of each element, uint32.

    Elements of 8 bytes give two numbers, along a new last dimension.
    """
    # Keys and complex numbers are read as the numbers that they consist of.
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    bits = jax.lax.bitcast_convert_type(leaf, _UNSIGNED[leaf.dtype.itemsize])
    return bits.astype(jnp.uint32)


def _indices(shape: tuple[int, ...]) -> jax.Array:
    """Return the row-major index of each element modulo 2**32, uint32.

    It is a sum over the dimensions, because a reshape would collect an array that is
    cut over devices.
    """
    indices = jnp.zeros(shape, jnp.uint32)
    for dimension in range(len(shape)):
        stride = math.prod(shape[dimension + 1 :]) % 2**32
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, dimension)
        indices += along * np.uint32(stride)
    return indices


def _mix(values: jax.Array) -> jax.Array:
    """Return the finalizer of MurmurHash3 of each value, uint32."""
    # Shifts carry high bits to low places, and multiplications low bits to high places.
    values = values ^ (values >> 16)
    values = values * np.uint32(0x85EBCA6B)
    values = values ^ (values >> 13)
    values = values * np.uint32(0xC2B2AE35)
    return values ^ (values >> 16)


def _is_finite(leaf: jax.Array) -> jax.Array:
    """Return whether no element is NaN or infinite, bool[]."""
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.all(jnp.isfinite(leaf))
    return jnp.asarray(True)


@jax.jit
def _bit_sums(tree: Any) -> jax.Array:
    """Return a number for each leaf, uint32[n].

    It is the sum over its elements, modulo 2**32, of the bits of element i as float32
    times the odd number 2 * i + 1.
    """
    sums: list[jax.Array] = []
    for leaf in jax.tree.leaves(tree):
        bits = jax.lax.bitcast_convert_type(
            leaf.astype(jnp.float32), jnp.uint32
        ).reshape(-1)
        # Odd factors have an inverse modulo 2**32: a change of one element always
        # changes the sum.
        factors = 2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1
        sums.append(jnp.sum(bits * factors, dtype=jnp.uint32))
    return jnp.stack(sums)


def reference_mark(params: Any) -> str:
    """Return a short mark of reference parameters.

    It is equal for every way to cut them over devices. It identifies a reference in
    checkpoints. It must not change, so that older checkpoints can be resumed. It is no
    check against damage.
    """
    return np.asarray(_bit_sums(params)).tobytes().hex()
