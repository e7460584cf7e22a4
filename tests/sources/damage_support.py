"""What the tables of damage share: one damaged file, read under both policies, as
texts and as rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.sources.support import faults, normalized, positions, read, rows
from tokenlake.errors import BadRecordError, DamagedFileError, UnsuitableFileError
from tokenlake.etl.sources import RowBatch


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One case: a file, and what becomes of it.

    Attributes:
        data: its bytes.
        policy: F: the file is refused. Q: records are set aside. N: something is mended
            and counted.
        reason: F: what the message says. Q: the reasons of the records set aside. N:
            counts of what was mended.
        place: F: what the message says of where. Q: the positions of those records.
        kept: how many records are read all the same.
        raw: Q: the bytes of the first record set aside.
    """

    name: str
    data: bytes
    policy: str
    reason: Any
    place: Any = None
    kept: int = 0
    raw: bytes | None = None
    file: str = "in.csv"
    options: dict[str, Any] = field(default_factory=dict)


def named(cases: list[Damage]) -> Any:
    """Return `cases` for pytest.mark.parametrize."""
    return [pytest.param(case, id=case.name) for case in cases]


def check(folder: Path, case: Damage) -> None:
    """Read the damaged file in every way, and see that it gets what the case says."""
    path = folder / case.file
    path.write_bytes(case.data)
    readers: tuple[Callable[..., Sequence[RowBatch]], ...] = (read, rows)
    for reader in readers:
        for policy in ("quarantine", "fail"):
            _judge(
                case,
                path,
                partial(reader, path, on_bad_record=policy, **case.options),
                policy,
            )


def beginning_of(path: Path, error: DamagedFileError) -> str:
    """Return how the message about a file begins: only of one that is damaged it
    says so.
    """
    says_damaged = not isinstance(error, UnsuitableFileError)
    assert ("the file is damaged" in str(error)) == says_damaged
    return f"{path}: the file is damaged: " if says_damaged else f"{path}: "


def _judge(
    case: Damage, path: Path, read: Callable[[], Sequence[RowBatch]], policy: str
) -> None:
    if case.policy == "F":
        with pytest.raises(DamagedFileError) as refused:
            read()
        for told in (beginning_of(path, refused.value), case.reason, case.place or ""):
            assert told in str(refused.value)
    elif case.policy == "Q" and policy == "fail":
        with pytest.raises(
            BadRecordError, match=rf"{path.name}.*: {case.reason[0]} at "
        ) as failed:
            read()
        assert failed.value.details["position"] == case.place[0]
    else:
        _judge_read(case, read())


def _judge_read(case: Damage, batches: Sequence[RowBatch]) -> None:
    bad = [record for batch in batches for record in batch.bad]
    aside = (
        list(zip(case.place, case.reason, strict=True)) if case.policy == "Q" else []
    )
    assert [(position, reason) for position, _, reason in faults(batches)] == aside
    if case.policy == "N":
        assert normalized(batches) == case.reason
    assert len(positions(batches)) == case.kept
    assert sum(batch.rows_read for batch in batches) == case.kept + len(bad)
    if case.raw is not None:
        assert bad[0].raw == case.raw
