"""What a hostile store or query cannot make us do: fill the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tokenlake as tl
from tests.servers.http import HttpServer
from tests.store.support import copy_store, shared_store
from tests.text.chat_samples import conversation, speaking, write, write_rows
from tokenlake import Catalog
from tokenlake.cli.app import main
from tokenlake.errors import BadRecordError, ConfigError, IntegrityError, WorkerError
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import close_filesystems, open_read_store, open_store

_PEAK = 700  # MB; unbounded, the queries take several GB

QUERIES = {
    "one aggregate": "select list(repeat('x', i::bigint)) from range(100000) r(i)",
    "a large result": "select repeat('x', 1000) || i::varchar as t from range(100000000) r(i)",
}

CHILD = """
import sys
from tokenlake.errors import TokenlakeError
from tokenlake.query.session import sql as query
try:
    outcome = str(query(sys.argv[1], sys.argv[2]).num_rows)
except TokenlakeError as error:
    outcome = f"{type(error).__name__}: {error}"
# Not ru_maxrss, which begins with what the process had that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) >> 10, outcome)
"""


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_wants_all_memory_is_refused(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), QUERIES[name]],
        env={**os.environ, "TOKENLAKE_SQL_MEMORY": "64MB"},
        capture_output=True,
        text=True,
        check=True,
    )
    peak, _, outcome = done.stdout.partition(" ")
    assert outcome.startswith("ConfigError"), outcome
    assert "TOKENLAKE_SQL_MEMORY" in outcome
    assert int(peak) < _PEAK


def test_the_memory_of_queries_can_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit() -> str:
        return tl.sql(tmp_path, "select current_setting('memory_limit') as most")[
            "most"
        ][0].as_py()

    monkeypatch.setenv("TOKENLAKE_SQL_MEMORY", "8GB")
    assert limit() == "8.0 GiB"
    monkeypatch.delenv("TOKENLAKE_SQL_MEMORY")
    number, unit = limit().split()
    size = float(number) * {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert 64 << 20 <= size < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for text in ("much", "1MB"):
        monkeypatch.setenv("TOKENLAKE_SQL_MEMORY", text)
        with pytest.raises(ConfigError, match="TOKENLAKE_SQL_MEMORY"):
            limit()


def _swollen(path: Path, size: int) -> None:
    """A file of many zeros that takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def test_documents_of_any_size_are_not_read(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    folder = copy_store(shared_store(tokenizer_dir), tmp_path / "copy")
    store = open_store(folder)
    catalog = Catalog(store)
    record = next((folder / "small/v2/ledger").iterdir())
    for path in (
        folder / "small/v2/manifest.json",
        folder / "small/v2/claim.json",
        record,
    ):
        _swollen(path, 1 << 40)
    _swollen(folder / "small/tags/prod.json", 1 << 40)
    with pytest.raises(
        IntegrityError,
        match=r"manifest.json: it has 1099511627776 bytes .* at most 1073741824",
    ):
        catalog.manifest("small", 2)
    with pytest.raises(IntegrityError, match=r"claim.json: it has .* at most 16777216"):
        catalog.read_claim("small", 2)
    with pytest.raises(IntegrityError, match=r"prod.json: it has .* at most 16777216"):
        catalog.tag("small", "prod")
    with pytest.raises(IntegrityError, match=r"ledger/.*: it has .* at most 268435456"):
        store.read(f"small/v2/ledger/{record.name}")


def test_a_server_cannot_send_without_end() -> None:
    with HttpServer({"small/v1/claim.json": bytes(20 << 20)}) as server:
        with pytest.raises(
            IntegrityError, match=r"claim.json: it has .* expected at most 16777216"
        ):
            open_read_store(server.url).read("small/v1/claim.json")
        assert len([line for line in server.log if "claim" in str(line)]) == 1, (
            "it is not asked for again"
        )
    close_filesystems()


FUNCTIONS = """
import pyarrow as pa

def large(row):
    if row["text"] == "now":
        pa.allocate_buffer(1 << 60)
    return row
"""


def test_arrow_gets_no_memory(
    tmp_path: Path,
    tokenizer_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "bounds_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    # Behind what planning looks at; and at once.
    texts = {
        "late": [f"a lake {i} " * 20 for i in range(3000)] + ["now"],
        "first": ["now"],
    }
    for name, found in texts.items():
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": t}) + "\n" for t in found)
        )
        config = {
            "name": name,
            "datasets": [
                {
                    "name": "pages",
                    "data_files": str(tmp_path / f"{name}.jsonl"),
                    "transforms": [{"apply": "bounds_functions:large"}],
                }
            ],
            "default_tokenizer": str(tokenizer_dir),
            "save": {"output_dir": str(tmp_path / "store")},
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    told = (
        r"could not allocate memory \(malloc of size 1152921504606846976 failed\); "
        r"it was preparing pages: late.jsonl"
    )
    with pytest.raises(WorkerError, match=told):
        build_dataset(json.loads((tmp_path / "late.json").read_text()), workers=1)
    assert main(["plan", str(tmp_path / "first.json")]) == 1
    err = capsys.readouterr().err
    assert "error: there is not enough memory" in err
    assert "Traceback" not in err
    assert "bug" not in err


SWELLS = (
    "{% for m in messages %}{{ m.content }}{{ ('x' * (m.times or 0))[:0] }}{% endfor %}"
)


def test_a_conversation_that_swells_in_its_template_is_named_by_file_and_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = write(speaking(SWELLS), tmp_path / "tokenizer")
    rows = [{"messages": conversation(seed)} for seed in range(20)]
    rows[12]["messages"][0]["times"] = 10**10
    config = {
        "name": "swells",
        "datasets": [
            {
                "name": "c",
                "data_files": str(write_rows(tmp_path / "in.jsonl", rows)),
                "tokenizer": str(tokenizer),
                "chat": {"loss": "all"},
            }
        ],
        "save": {"output_dir": str(tmp_path / "store")},
    }
    with pytest.raises(
        BadRecordError,
        match=r"in\.jsonl:13: template_limit .* more than 1,024 MiB of memory",
    ):
        build_dataset(config, workers=1)
    hostile = write(
        speaking("{{ [0-10**15] | map('string') | list * 10 ** 10 }}"),
        tmp_path / "hostile",
    )
    config["datasets"][0]["tokenizer"] = str(hostile)
    (tmp_path / "hostile.json").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path / "hostile.json")]) == 2
    assert (
        "more than 1,024 MiB of memory, as on the 2 previous conversations"
        in capsys.readouterr().err
    )
