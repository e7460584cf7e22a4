"""What the tables of damage share: one damaged file, read under both policies, as texts and as rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sources.support import Source, one
from tokenlake.errors import BadRecordError, DamagedFileError
from tokenlake.sources.batch import ReadBatch
from tokenlake.sources.records import read_range, read_rows
from tokenlake.sources.splits import split_file


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One case: a file, and what becomes of it.

    Attributes:
        data: its bytes.
        policy: F: the file is refused. Q: records are set aside. N: something is mended and counted.
        reason: F: what the message says. Q: the reasons of the records set aside. N: counts of what was mended.
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
    for reader in (read_range, read_rows):
        for policy in ("quarantine", "fail"):
            source: Any = Source(on_bad_record=policy, **case.options)
            _judge(case, path, lambda source=source, reader=reader: _read(path, reader, source), policy)


def _read(path: Path, reader: Any, source: Any) -> list[ReadBatch]:
    file = one(path, type=source.type, text_mode=source.text_mode)
    return [batch for part in split_file(file, 128 << 20) for batch in reader(part, source)]


def _judge(case: Damage, path: Path, read: Any, policy: str) -> None:
    if case.policy == "F":
        with pytest.raises(DamagedFileError) as refused:
            read()
        for told in (f"{path}: the file is damaged: ", case.reason, case.place or ""):
            assert told in str(refused.value)
    elif case.policy == "Q" and policy == "fail":
        with pytest.raises(BadRecordError, match=rf"{path.name}.*: {case.reason[0]} at ") as failed:
            read()
        assert failed.value.details["position"] == case.place[0]
    else:
        _judge_read(case, read())


def _judge_read(case: Damage, batches: list[ReadBatch]) -> None:
    bad = [record for batch in batches for record in batch.bad]
    mended: dict[str, int] = {}
    for batch in batches:
        for name, count in batch.normalized.items():
            mended[name] = mended.get(name, 0) + count
    assert [record.reason for record in bad] == list(case.reason if case.policy == "Q" else ())
    assert [record.position for record in bad] == list(case.place if case.policy == "Q" else ())
    assert mended == (case.reason if case.policy == "N" else mended)
    assert sum(len(batch.positions) for batch in batches) == case.kept
    assert sum(batch.rows_read for batch in batches) == case.kept + len(bad)
    if case.raw is not None:
        assert bad[0].raw == case.raw
