"""A key, takedown lists and states of loaders over the small store of
:mod:`tests.reading.support`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tokenlake as tl
from tokenlake.runtime.loader import BatchPlan, LoaderOptions
from tokenlake.runtime.loader.state import state_of

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()

ORDERS: dict[str, dict[str, Any]] = {
    "one epoch a pass": {"batch_size": 8},
    "epochs and windows": {"batch_size": {0: 4, 3: 8}, "epochs": 3, "window": 3},
    "the rest left out": {"batch_size": 8, "drop_last": True},
    "without end": {"batch_size": 8, "epochs": None, "lanes": 4},
    "one window": {"batch_size": 8, "epochs": 2, "window": 1},
    "strands": {"batch_size": {0: 4, 3: 8}, "epochs": 2, "lanes": 4, "interleave": 3},
    "as stored": {"batch_size": 8, "shuffle": False},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "restart": {},
    "cut": {"rows": 84},
    "all": {"stop": "all_exhausted"},
    "first": {"stop": "first_exhausted"},
}
# Forms of the order of a mixture's sources: options of its loader.
MIXED_FORMS: dict[str, dict[str, Any]] = {
    "one by one": {"window": 1},
    "windows of three": {"window": 3},
    "side by side": {"interleave": 3},
    "little memory": {"cache_bytes": 6000},
}


def key_file(folder: Path) -> Path:
    """The private key as `openssl genpkey` writes one, and its public key beside it."""
    pem = serialization.Encoding.PEM
    private, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(KEY.private_bytes(pem, private, none))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "key.pub.pem").write_bytes(KEY.public_key().public_bytes(pem, public))
    return folder / "key.pem"


def plan_of(data: tl.Dataset | tl.Mixture, **options: Any) -> BatchPlan:
    return BatchPlan(data, LoaderOptions(**{"batch_size": 8, **options}))


def mixture_of(a: tl.Dataset, b: tl.Dataset, **options: Any) -> tl.Mixture:
    return tl.Mixture({"a": a, "b": b}, {"a": 0.4, "b": 0.6}, block_size=10, **options)


def state_at(plan: BatchPlan, step: int) -> dict[str, Any]:
    """The state of a loader of this plan before a step."""
    return state_of(plan, plan.steps.position(step))


def delivered(
    plan: BatchPlan, first: int, end: int
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """The stored rows of each step, step by step: of each dataset."""
    found: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in plan.datasets}
    for step in range(first, end):
        (rows,) = plan.rows([plan.batch(step)], lambda size: np.arange(size))
        for number, (name, dataset) in enumerate(plan.datasets.items()):
            there = rows.source == number
            begins = np.array(
                [dataset.rows.row_of(group) for group in rows.group[there].tolist()],
                np.int64,
            )
            found[name].append(begins + rows.row[there])
    return found


def listed(path: Path, documents: Mapping[str | int, list[int]]) -> Path:
    """A takedown list: file -> positions."""
    rows = [
        (file, position)
        for file, positions in documents.items()
        for position in positions
    ]
    files, positions = zip(*rows, strict=True)
    pq.write_table(pa.table({"file": list(files), "position": list(positions)}), path)
    return path
