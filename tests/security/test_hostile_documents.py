"""Documents of a store that no JSON should be: one unreadable version hides no other,
in any command.

Each damage is sealed again, as somebody would who wants it to be believed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.lazily import lazily
from tests.store.support import build_store, copy_store
from tokenlake import Catalog
from tokenlake.errors import IntegrityError
from tokenlake.runtime.store import open_store

app: Any = lazily("tokenlake.cli.app")

# Texts in the place of a value of JSON.
FRAGMENTS = {
    "a lone surrogate": rb'"\ud800"',
    "a lone surrogate in UTF-8": b'"\xed\xa0\x80"',
    "bytes that are no UTF-8": b'"\xff\xfe"',
    "NUL": rb'"\u0000"',
    "NaN": b"NaN",
    "infinity": b"1e999",
    "a huge number": b"1" + b"0" * 400,
    "a negative number": b"-1",
    "a deep list": b"[" * 100_000 + b"]" * 100_000,
    "a deep object": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "null": b"null",
}
# How a fragment gets into a manifest without its seal.
PLACES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "a known member": lambda data, part: data.replace(
        b'"dataset":"small"', b'"dataset":' + part, 1
    ),
    "an unknown member": lambda data, part: data[:-1] + b',"zzz":' + part + b"}",
    "an entry": lambda data, part: re.sub(
        rb'"other_files":\{"[^"]+":\{',
        lambda found: found[0] + b'"extra":' + part + b",",
        data,
        count=1,
    ),
    "an account": lambda data, part: data.replace(
        b'"accounts":{"notes":{', b'"accounts":{"notes":{"zzz":' + part + b",", 1
    ),
}
WHOLE = {
    "nothing": b"",
    "half": b'{"account":{',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "null": b"null",
    "depth": b"[" * 1_000_000,
}


def sealed(data: bytes) -> bytes:
    """Return a document with the seal of what it says, however that is written."""
    return (
        data[:-1] + b',"sha256":"' + hashlib.sha256(data).hexdigest().encode() + b'"}'
    )


def without_seal(data: bytes) -> bytes:
    seal = json.loads(data)["sha256"].encode()
    return data.replace(b'"sha256":"' + seal + b'",', b"", 1)


def damages_of(manifest: bytes) -> dict[str, bytes]:
    plain = without_seal(manifest)
    damages = {f"{kind} as a whole": data for kind, data in WHOLE.items()}
    damages["a member twice"] = sealed(plain[:-1] + b',"version":1}')
    for place, put in PLACES.items():
        for kind, part in FRAGMENTS.items():
            damages[f"{kind} in {place}"] = sealed(put(plain, part))
    return damages


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("documents"), tokenizer_dir)


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    copy = copy_store(built, tmp_path / "lake")
    tl.tag(copy, "prod", name="small@v1")
    return copy


def test_every_damage_of_a_manifest_is_an_integrity_error_that_names_the_file(
    store: Path,
) -> None:
    path = store / "small" / "v1" / "manifest.json"
    catalog = Catalog(open_store(store))
    for name, data in damages_of(path.read_bytes()).items():
        path.write_bytes(data)
        with pytest.raises(IntegrityError, match=r"small/v1/manifest\.json") as caught:
            catalog.manifest("small", 1)
        assert str(caught.value).isprintable() or "\n" in str(caught.value), name
        str(caught.value).encode()


COMMANDS = {
    "ls": (["ls"], True),
    "ls --json": (["ls", "--json"], True),
    "show": (["show", "small@v2"], False),
    "gc": (["gc", "--dry-run"], True),
    "sql of a table": (["sql", "select dataset, version, rows from datasets"], True),
    "sql of shards": (["sql", "select count(*) from shards"], True),
    "sql of rows": (["sql", "select count(*) from small"], False),
    "verify": (["verify", "small@v2"], False),
    "peek": (["peek", "small@v2", "-n", "1"], False),
    "report": (["report", "small@v2", "-o", "report.html"], False),
    "report of a store": (["report", "-o", "pages"], False),
}
SOME = [
    "a lone surrogate in UTF-8 in an entry",
    "a lone surrogate in a known member",
    "NaN in an account",
    "a deep list in an unknown member",
    "nothing as a whole",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_go_on_with_the_other_versions(
    store: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = store / "small" / "v1" / "manifest.json"
    damages = damages_of(path.read_bytes())
    arguments, names_it = COMMANDS[command]
    for name in SOME:
        path.write_bytes(damages[name])
        assert app.main([*arguments, "--store", str(store)]) == 0, name
        captured = capsys.readouterr()
        text = " ".join((captured.out + captured.err).split())
        assert "Traceback" not in text and "this is a bug" not in text
        assert ("small/v1/manifest.json" in text) == names_it, (name, text)
        if command == "ls":
            assert "unreadable" in captured.out and "v2" in captured.out
    if command == "report":
        assert "small/v1/manifest.json" in (tmp_path / "report.html").read_text()
    if command == "report of a store":
        assert (
            "small/v1/manifest.json" in (tmp_path / "pages" / "index.html").read_text()
        )


FILES = {
    "claim": "small/v1/claim.json",
    "ledger": "small/v1/ledger/00000.json",
    "tag": "small/tags/prod.json",
    "configuration": "small/v1/config.yaml",
}


@pytest.mark.parametrize("kind", FILES)
def test_other_documents_stop_no_command_either(
    store: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = store / FILES[kind]
    whole = path.read_bytes()
    is_sealed = kind != "configuration"
    parts = {
        name: FRAGMENTS[name]
        for name in ("a lone surrogate in UTF-8", "NaN", "a deep list")
    }
    damages = dict(WHOLE)
    if is_sealed:
        plain = without_seal(whole)
        damages |= {
            name: sealed(plain[:-1] + b',"zzz":' + part + b"}")
            for name, part in parts.items()
        }
    for name, data in damages.items():
        path.write_bytes(data)
        # To show or verify a version is to read the tags of its dataset, too.
        alone = ("show", "verify") if kind != "tag" else ()
        for command in ("ls", "gc", "sql of a table", "sql of rows", "peek", *alone):
            assert app.main([*COMMANDS[command][0], "--store", str(store)]) == 0, (
                name,
                command,
            )
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err and "this is a bug" not in captured.err
        if kind == "tag":
            assert app.main(["show", "small@v1", "--store", str(store)]) != 0
            assert FILES[kind] in capsys.readouterr().err
        assert app.main(["verify", "small@v1", "--store", str(store)]) == 3, name
        assert FILES[kind].rpartition("/")[2] in capsys.readouterr().out


def test_the_library_warns_of_a_version_that_it_leaves_out(store: Path) -> None:
    (store / "small" / "v1" / "manifest.json").write_bytes(b"{}")
    with pytest.warns(
        UserWarning, match=r"small/v1 is left out: small/v1/manifest\.json"
    ):
        rows = tl.sql(
            store, "select version, rows from datasets order by version"
        ).to_pylist()
    assert (
        [row["version"] for row in rows] == [1, 2]
        and rows[0]["rows"] is None
        and rows[1]["rows"]
    )
