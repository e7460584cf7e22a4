"""The order in which a store becomes durable, read from traces: nothing is named before
it is on the disk.

A crash of the machine, unlike that of a process, loses what was not synced. It cannot
be tried here; that the order is the right one can be seen.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.conftest import Cases
from tests.faults.crash_support import configuration, require_strace, write_jsonl
from tokenlake import Catalog
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import open_store

ROOT: Final = Path(__file__).resolve().parents[2]
_NAMES: Final = (
    "?link",
    "linkat",
    "?rename",
    "?renameat",
    "renameat2",
    "?unlink",
    "unlinkat",
    "?mkdir",
    "mkdirat",
)
_CALLS: Final = ",".join([*_NAMES, "fsync", "fdatasync", "write", "pwrite64", "openat"])
_LINE: Final = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
_PATH: Final = re.compile(r'(?:AT_FDCWD<[^>]*>, )?(?:"([^"]*)"|\d+<([^>]*)>)')
_ALIKE: Final = {
    "linkat": "link",
    "fdatasync": "fsync",
    "mkdirat": "mkdir",
    "unlinkat": "unlink",
}


@dataclass(frozen=True, slots=True)
class Done:
    """One call that succeeded: what, on which paths, and at which lines of the log
    it began and ended.
    """

    call: str
    paths: tuple[str, ...]
    begin: int
    end: int
    line: str

    def before(self, other: Done) -> bool:
        """Whether it was over when the other began; calls of several processes may
        overlap.
        """
        return self.end < other.begin


def traced(script: str, *arguments: str, log: Path, cache: Path) -> list[Done]:
    """Run a Python script under strace with all its children; return what succeeded,
    in order.
    """
    command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={_CALLS}", "-o", str(log)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}",
        "TOKENLAKE_CACHE": str(cache),
    }
    done = subprocess.run(
        [*command, sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(calls_in(log.read_text(errors="replace").splitlines()))


def calls_in(lines: list[str]) -> Iterator[Done]:
    """Parse a log of ``strace -f -y``; calls that were interrupted by another's line
    are put together.
    """
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        match = _LINE.match(line)
        if match is None:
            continue
        pid, rest, begin = match["pid"], match["rest"], number
        if rest.endswith("<unfinished ...>"):
            begun[pid] = number, rest.removesuffix("<unfinished ...>")
            continue
        if (
            resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", rest)
        ) is not None and pid in begun:
            begin, first = begun.pop(pid)
            rest = first + resumed[1]
        call = re.match(r"(\w+)\((.*)\)\s+= (\d+)", rest)
        if call is not None:
            name = _ALIKE.get(call[1], call[1])
            name = (
                "rename"
                if name.startswith("rename")
                else "write"
                if name.startswith("pwrite")
                else name
            )
            yield Done(
                name,
                tuple(a or b for a, b in _PATH.findall(call[2])),
                begin,
                number,
                rest,
            )


BUILD = """
import json, sys
from tokenlake import build_dataset
build_dataset(json.loads(sys.argv[1]), workers=2)
"""

TAG = """
import sys
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.address import open_store
for version in (1, 2, 1):
    Catalog(open_store(sys.argv[1])).set_tag("set", "prod", version)
"""

REPLACE = """
import hashlib, sys
from pathlib import Path
from tokenlake.runtime.store.address import open_store
store, (key, damaged) = open_store(sys.argv[1]), sys.argv[2:]
good = Path(sys.argv[1], key).read_bytes()[:-1] + b"!"
temp = store.temp("set/v1")
temp.write_bytes(good)
assert store.replace(temp, key, hashlib.sha256(good).hexdigest(), damaged) == "replaced"
"""


class Trace:
    """What was done to one store; paths relative to it."""

    def __init__(self, store: Path, done: list[Done]) -> None:
        self.store = store
        # The folder that the store is in is synced for the store's own name.
        above = str(store.parent)
        self.done = [
            call
            for call in done
            if any(self.inside(path) or path == above for path in call.paths)
        ]

    def inside(self, path: str) -> bool:
        return path == str(self.store) or path.startswith(f"{self.store}/")

    def of(self, call: str, path: str) -> list[Done]:
        return [
            d for d in self.done if d.call == call and d.paths and d.paths[0] == path
        ]

    def published(self) -> list[tuple[Done, str, str]]:
        """(call, temporary name, name) of everything that got its name."""
        moves = [d for d in self.done if d.call in ("link", "rename")]
        return [(d, d.paths[0], d.paths[1]) for d in moves if not is_temp(d.paths[1])]

    def naming(self, key: str) -> Done:
        """The last call that gave a key its object."""
        return [
            call for call, _, name in self.published() if name == str(self.store / key)
        ][-1]

    def durable(self, named: Done) -> Done:
        """The fsync of the folder that made a name durable: the first after it."""
        folder = str(Path(named.paths[1]).parent)
        return next(d for d in self.of("fsync", folder) if named.before(d))


def is_temp(path: str) -> bool:
    return Path(path).name.startswith(".tmp-")


def bytes_before_the_name(trace: Trace) -> None:
    """Written, synced, read back, named; the folder synced; and only then the
    temporary name removed.
    """
    assert trace.published()
    for named, temp, _ in trace.published():
        # A second name of what was durable before its first, and is read again.
        if not is_temp(temp):
            opened = [d for d in trace.of("openat", temp) if d.before(named)]
            assert opened, f"not read again: {named.line}"
            assert all("O_RDONLY" in d.line for d in opened)
            assert trace.durable(named)
            continue
        synced = [d for d in trace.of("fsync", temp) if d.before(named)]
        assert synced, f"never synced: {named.line}"
        assert all(d.before(synced[-1]) for d in trace.of("write", temp)), (
            f"written later: {named.line}"
        )
        opened = [
            d
            for d in trace.of("openat", temp)
            if synced[-1].before(d) and d.before(named)
        ]
        assert opened, f"not read back: {named.line}"
        assert "O_RDONLY" in opened[-1].line
        durable = trace.durable(named)
        removed = [d for d in trace.of("unlink", temp) if not d.before(named)]
        assert named.call == "rename" or len(removed) == 1, f"left: {named.line}"
        assert all(durable.before(d) for d in removed), (
            f"removed too early: {named.line}"
        )


def folders_before_what_is_in_them(trace: Trace) -> None:
    """Whoever names something: each folder above it that was made is durable in its
    parent.
    """
    made = {d.paths[0].rstrip("/"): d for d in trace.done if d.call == "mkdir"}
    for named, _, name in trace.published():
        for folder in (str(parent) for parent in Path(name).parents):
            if folder in made and trace.inside(folder):
                synced = trace.of("fsync", str(Path(folder).parent))
                assert any(
                    made[folder].before(d) and d.before(named) for d in synced
                ), f"{folder} is not durable: {named.line}"


def nothing_is_written_in_place(trace: Trace) -> None:
    for call in trace.done:
        if call.call == "write":
            assert is_temp(call.paths[0]), call.line
        if call.call == "openat" and ("O_WRONLY" in call.line or "O_RDWR" in call.line):
            assert is_temp(call.paths[0]), call.line


def records_after_their_parts(trace: Trace) -> None:
    records = list((trace.store / "set").glob("v*/ledger/*.json"))
    assert len(records) >= 3
    for path in records:
        record = json.loads(path.read_text())
        parts = [part["path"] for part in record["parts"]]
        parts += [record["quarantine"]["path"]] if record["quarantine"] else []
        assert parts
        version = path.parents[1].relative_to(trace.store)
        named = [call for call, _, name in trace.published() if name == str(path)]
        for part in parts if named else ():
            assert trace.durable(trace.naming(f"{version}/{part}")).before(named[0])


def manifest_last(trace: Trace) -> None:
    made = [
        call for call, _, name in trace.published() if name.endswith("/manifest.json")
    ]
    assert len(made) == 1
    version = Path(made[0].paths[1]).parent
    manifest = json.loads((version / "manifest.json").read_text())
    listed = [
        *(entry["path"] for entry in manifest["files"]),
        *manifest["other_files"],
        "claim.json",
    ]
    for path in listed:
        assert trace.durable(
            trace.naming(str((version / path).relative_to(trace.store)))
        ).before(made[0])
    later = [name for call, _, name in trace.published() if made[0].before(call)]
    assert [Path(name).parent.name for name in later] == ["runs"] * len(later)
    assert later, "the run's own log"


LAWS: dict[str, Callable[[Trace], None]] = {
    "bytes before the name": bytes_before_the_name,
    "folders before what is in them": folders_before_what_is_in_them,
    "nothing in place": nothing_is_written_in_place,
    "records after their parts": records_after_their_parts,
    "manifest last": manifest_last,
}


@pytest.fixture(scope="module", autouse=True)
def strace(tmp_path_factory: pytest.TempPathFactory) -> None:
    require_strace(tmp_path_factory.mktemp("probe"))


def hold(trace: Trace, laws: list[str], cases: Cases) -> None:
    for name in laws:
        LAWS[name](trace)
        cases.add(f"order: {name}")


def placed(config: dict[str, Any], store: Path) -> dict[str, Any]:
    return json.loads(json.dumps(config).replace("{store}", str(store)))


def test_a_build_names_nothing_before_it_is_durable(
    tmp_path: Path, tokenizer_dir: Path, cases: Cases
) -> None:
    """Two builds: a new version in folders that are missing, and one that reuses its
    units.
    """
    write_jsonl(tmp_path / "in", 0, 3)
    # Of folders that are missing the outermost is watched, too.
    lake = tmp_path / "lakes" / "one"
    store = lake / "store"
    config = placed(configuration(tmp_path / "in", tokenizer_dir), store)
    for what in ("build", "build that reuses"):
        log, cache = tmp_path / f"{what}.log", tmp_path / "cache"
        done = traced(BUILD, json.dumps(config), log=log, cache=cache)
        hold(Trace(store, done), list(LAWS), cases)
        if what == "build":
            hold(
                Trace(tmp_path / "lakes", done),
                ["folders before what is in them"],
                cases,
            )
        write_jsonl(tmp_path / "in", 3, 1)


def test_swaps_and_replacements_are_durable_before_they_are_named(
    tmp_path: Path, tokenizer_dir: Path, cases: Cases
) -> None:
    store = tmp_path / "store"
    write_jsonl(tmp_path / "in", 0, 3)
    config = placed(configuration(tmp_path / "in", tokenizer_dir), store)
    build_dataset(config, workers=1)
    write_jsonl(tmp_path / "in", 3, 1)
    build_dataset(config, workers=1)
    laws = list(LAWS)[:3]
    cache = tmp_path / "cache"
    tags = Trace(store, traced(TAG, str(store), log=tmp_path / "tag.log", cache=cache))
    assert [call.call for call, _, _ in tags.published()] == [
        "link",
        "rename",
        "rename",
    ]
    hold(tags, laws, cases)
    entry = Catalog(open_store(store)).manifest("set", 1).files[0]
    key = f"set/v1/{entry.path}"
    log = tmp_path / "replace.log"
    replaced = Trace(
        store, traced(REPLACE, str(store), key, entry.sha256, log=log, cache=cache)
    )
    assert [call.call for call, _, _ in replaced.published()] == ["rename"]
    hold(replaced, laws, cases)
