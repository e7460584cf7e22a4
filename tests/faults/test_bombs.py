"""Files that unfold to far more than they are, in children whose memory is measured:
inputs, and shards of a store.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import Cases
from tests.store.support import copy_store, shared_store

_PEAK: Final = 2500  # MB; unbounded, the cases take 3 GB to 20 GB
_SLOW: Final = ("arrow buffers",)
_PEAK_OF_SHARDS: Final = 1000  # MB; unbounded, 2 GB and more

INPUTS: Final = {
    "gzip": """
        import gzip
        line = b'{"text":"' + b"a" * (1 << 20) + b'"}\\n'
        member = gzip.compress(line * 16)
        with open(folder + "/in.jsonl.gz", "wb") as file:
            for _ in range(120):
                file.write(member)
    """,
    "zstd window of 2 GB": """
        import struct
        block = struct.pack("<I", (131072 << 3) | 2)[:3] + b"a"
        head = bytes.fromhex("28b52ffd") + bytes([0, 21 << 3])
        open(folder + "/in.jsonl.zst", "wb").write(head + block * 30000 + struct.pack("<I", 1)[:3])
    """,
    "zstd runs": """
        import struct
        block = struct.pack("<I", (131072 << 3) | 2)[:3] + b"a"
        head = bytes.fromhex("28b52ffd") + bytes([0, 17 << 3])
        open(folder + "/in.jsonl.zst", "wb").write(head + block * 80000 + struct.pack("<I", 1)[:3])
    """,
    "parquet dictionary": """
        import pyarrow as pa, pyarrow.parquet as pq
        texts = pa.array(["a" * (1 << 20)]).dictionary_encode().take(pa.array([0] * 20000))
        pq.write_table(pa.table({"text": texts}), folder + "/in.parquet", compression="zstd")
    """,
    "arrow buffers": """
        import pyarrow as pa
        table = pa.table({"text": pa.array(["a" * (1 << 20)] * 1200)})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(folder + "/in.arrow", table.schema, options=options) as writer:
            writer.write_table(table)
    """,
    "arrow buffers that lie": """
        import struct
        import pyarrow as pa
        table = pa.table({"text": pa.array(["abc" * 1000] * 100)})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(folder + "/in.arrow", table.schema, options=options) as writer:
            writer.write_table(table)
        data = bytearray(open(folder + "/in.arrow", "rb").read())
        at = data.find(struct.pack("<q", 300000))
        data[at : at + 8] = struct.pack("<q", 1 << 34)
        open(folder + "/in.arrow", "wb").write(data)
    """,
}

READ_INPUT: Final = """
    from pathlib import Path
    from tests.sources.support import Source, one
    from tokenlake.etl.sources.records import read_range
    from tokenlake.etl.sources.splits import split_file
    (path,) = Path(folder).glob("in.*")
    for part in split_file(one(path), 128 << 20):
        for batch in read_range(part, Source(on_bad_record="quarantine")):
            pass
"""

# Row groups of half a billion values in some kilobytes, with a manifest that agrees to
# all of it.
SHARDS: Final = {"dictionary": True, "zeros": False}

WRITE_SHARD: Final = """
    import hashlib
    from dataclasses import replace
    from pathlib import Path
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    from tokenlake.runtime.store.manifest import Manifest
    version = Path(folder) / "small" / "v2"
    manifest = Manifest.from_bytes((version / "manifest.json").read_bytes())
    shard = next(each for each in manifest.files if each.split == "train")
    path = version / shard.path
    length, step = manifest.seq_length, 1 << 15
    plain = pq.read_table(path).slice(0, 1)
    rows = plain.take(pa.array([0] * step)).combine_chunks()
    at = rows.schema.get_field_index("input_ids")
    field = rows.schema.field(at)
    ids = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(step * length, np.int32)), type=field.type)
    batch = rows.set_column(at, field, ids).to_batches()[0]
    options = dict(compression="zstd", use_dictionary=sys.argv[2] == "True", write_page_checksum=True)
    table = pa.Table.from_batches([batch] * ((1 << 29) // (step * length)))
    pq.write_table(table, path, row_group_size=len(table), **options)
    count, data = pq.read_metadata(path).num_rows, path.read_bytes()
    assert pq.read_metadata(path).num_row_groups == 1
    assert len(data) < 64 << 20, len(data)
    sha256 = hashlib.sha256(data).hexdigest()
    ours = replace(shard, bytes=len(data), sha256=sha256, rows=count, tokens=count, row_groups=(0,))
    others = tuple(each for each in manifest.files if each.split != "train")
    (version / "manifest.json").write_bytes(replace(manifest, files=tuple(
        sorted((ours, *others), key=lambda each: each.path))).to_bytes())
"""

OPEN: Final = """
    from tokenlake.runtime.reading.version import open_rows
    from tokenlake.runtime.store.address import open_store
    from tokenlake.etl.integrity.verify import verify
    store = open_store(folder)
    rows = open_rows(store, "small", 2, "train")
"""
EXPORT: Final = """
    from tokenlake.runtime.store.catalog import Catalog
    from tokenlake.etl.export.row_export import version_batches
    for batch in version_batches(store, Catalog(store).manifest("small", 2), "train"):
        pass
"""
LOAD: Final = """
    import tokenlake as tl
    next(iter(tl.DataLoader(tl.open(folder + "/small@v2", split="train"), 4)))
"""
READERS: Final = {
    "through Arrow": "    rows.read(0)\n",
    "packed rows": "    rows.packed(0, loss_mask=False)\n",
    "verify --deep": "    report = verify(store, 'small', 2, deep=True)\n    assert report.ok, 'IntegrityError'\n",
    "flat export": EXPORT,
    "loader": LOAD,
}


# DuckDB decodes little at a time; what it keeps is bounded.
QUERY: Final = """
    import os
    os.environ["TOKENLAKE_SQL_MEMORY"] = "512MB"
    from tokenlake.query.session import sql as query
    query(folder, "select count(*), max(length(input_ids)) from small where split = 'train'")
"""


def child(code: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run code in a child; return its peak of memory in MB and how it ended."""
    head = "import sys\nfolder = sys.argv[1]\n"
    # Not ru_maxrss, which begins with what the process had that started this one.
    tail = """
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) >> 10, " ".join(outcome.split()))
"""
    body = (
        "outcome = 'read'\ntry:\n"
        + textwrap.indent(textwrap.dedent(code), "    ")
        + "\nexcept Exception as error:\n    outcome = f'{type(error).__name__}: {error}'\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            head + body + tail,
            str(folder),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    peak, _, outcome = done.stdout.strip().rpartition("\n")[2].partition(" ")
    return int(peak), outcome


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str, tmp_path: Path, cases: Cases) -> None:
    if name in _SLOW and not cases.all:
        pytest.skip("takes half a minute; --faults all runs it")
    _, outcome = child(INPUTS[name], tmp_path)
    assert outcome == "read"
    peak, outcome = child(READ_INPUT, tmp_path)
    refused = outcome.startswith("DamagedFileError")
    cases.add(
        f"bomb: {name}",
        survived=refused and peak < _PEAK,
        note=f"{name}: {peak} MB, {outcome[:200]}",
    )


@pytest.mark.parametrize("form", SHARDS)
def test_shards_of_a_store(
    form: str, tmp_path: Path, tokenizer_dir: Path, cases: Cases
) -> None:
    store = copy_store(shared_store(tokenizer_dir), tmp_path / "store")
    _, outcome = child(WRITE_SHARD, store, str(SHARDS[form]))
    assert outcome == "read"
    for reader, code in READERS.items():
        peak, outcome = child(textwrap.dedent(OPEN) + textwrap.dedent(code), store)
        refused = "IntegrityError" in outcome or "bomb" in outcome
        note = f"{form}, {reader}: {peak} MB, {outcome[:200]}"
        cases.add(
            f"bomb: shard {reader}",
            survived=refused and peak < _PEAK_OF_SHARDS,
            note=note,
        )
    peak, outcome = child(QUERY, store)
    note = f"{form}, sql: {peak} MB, {outcome[:200]}"
    cases.add("bomb: shard sql", survived=peak < _PEAK_OF_SHARDS, note=note)
