"""A store that somebody else wrote: nothing of it runs, nothing of it leads outside,
nothing of it is believed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.support import build_store, copy_store
from tokenlake import sql as query
from tokenlake import verify
from tokenlake.errors import ConfigError, IntegrityError, TokenlakeError
from tokenlake.runtime.store import open_store, seal
from tokenlake_flows.server import EmbeddedServer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("hostile"), tokenizer_dir)


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return copy_store(store, tmp_path / "copy")


def limited(
    code: str, *arguments: str, megabytes: int = 3000, seconds: int = 60
) -> str:
    """Run code in a child with bounded memory and time; return what it printed."""
    head = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20,) * 2)\n"
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            head + textwrap.dedent(code),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


READ_ALL = """
import sys
ran = []
def hook(event, arguments):
    if event in ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"):
        ran.append((event, str(arguments)[:80]))
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith("planted.py"):
        ran.append((event, arguments[0]))
import tokenlake as tl, pyarrow, pyarrow.parquet
from tokenlake.query.session import sql as query
from tokenlake.query.sequences import read_sequences
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.runtime.store.address import open_store
from tokenlake.etl.integrity.verify import verify
sys.addaudithook(hook)
store = open_store(sys.argv[1])
ds = tl.open(sys.argv[1], "small")
next(iter(tl.DataLoader(ds, batch_size=2, seed=0)))
query(store, "select decode(input_ids, 'small') from small limit 1")
report = verify(store, "small", 2, deep=True)
print(ran)
"""


def test_reading_runs_nothing(copy: Path) -> None:
    """Not even what a tokenizer's configuration names as its code, and what lies
    beside it.
    """
    folder = copy / "small" / "v2" / "tokenizer"
    (folder / "planted.py").write_text("raise SystemExit('it ran')")
    assert limited(READ_ALL, str(copy), megabytes=8000).strip() == "[]"


def test_a_config_that_asks_for_remote_code_is_not_asked(copy: Path) -> None:
    folder = copy / "small" / "v2"
    config = json.loads((folder / "tokenizer" / "tokenizer_config.json").read_text())
    config |= {
        "auto_map": {"AutoTokenizer": ["planted.Planted", None]},
        "trust_remote_code": True,
    }
    replaced(copy, "tokenizer/tokenizer_config.json", json.dumps(config).encode())
    replaced(
        copy,
        "config.yaml",
        b"trust_remote_code: true\na: !!python/object/apply:os.system [false]\n",
    )
    (folder / "tokenizer" / "planted.py").write_text("raise SystemExit('it ran')")
    assert limited(READ_ALL, str(copy), megabytes=8000).strip() == "[]"


def replaced(store: Path, path: str, data: bytes) -> None:
    """Put another file into small v2, and into its manifest: as somebody would who
    wants it to be believed.
    """
    import hashlib

    folder = store / "small" / "v2"
    (folder / path).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["other_files"][path] = {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    (folder / "manifest.json").write_bytes(seal(manifest))


@pytest.mark.parametrize(
    "place",
    [
        "small",
        "small/v2",
        "small/v2/manifest.json",
        "small/v2/data",
        "small/v2/ledger",
        "a shard",
    ],
)
def test_links_in_a_store_are_not_followed(copy: Path, store: Path, place: str) -> None:
    if place == "a shard":
        place = next(
            str(path.relative_to(copy))
            for path in sorted((copy / "small" / "v2" / "data").iterdir())
        )
    target = copy / place
    target.rename(target.with_name("moved-away"))
    target.symlink_to(store / place)
    readers: list[Callable[[], object]] = [
        lambda: query(str(copy), "select max(len(input_ids)) from small"),
        lambda: verify(open_store(copy), "small", 2, deep=True),
    ]
    for read in readers:
        try:
            report = read()
        except TokenlakeError:
            continue
        assert not getattr(report, "ok", False)


def test_a_where_or_a_query_reads_nothing_else(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "opensesame")
    for sql in (
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('/proc/self/environ')",
        "select * from glob('/etc/*')",
        "select * from '/etc/passwd'",
        "select getenv('LAKE_SECRET')",
        "select * from read_parquet('https://host.invalid/a.parquet')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from parquet_metadata('/tmp/x.parquet')",
        "attach '/tmp/x.db'",
        "copy (select 1) to '/tmp/x'",
        "install httpfs",
        "load httpfs",
        "set memory_limit = '1TB'",
        "reset lock_configuration",
        "pragma enable_external_access",
        "create table t (a int)",
        "export database '/tmp/x'",
    ):
        with pytest.raises((ConfigError, IntegrityError)) as caught:
            query(str(store), sql)
        assert "opensesame" not in str(caught.value)
        assert "root:" not in str(caught.value)


def test_the_embedded_server_listens_on_this_machine_alone() -> None:
    server = EmbeddedServer()
    try:
        port = int(server.api_url.rpartition(":")[2].partition("/")[0])
        listening = [
            line.split()[1]
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            if line.split()[3] == "0A"
            and int(line.split()[1].rpartition(":")[2], 16) == port
        ]
        assert listening == [f"0100007F:{port:04X}"]
    finally:
        server.stop()
