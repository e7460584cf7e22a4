"""What a manifest states of configuration and tokenizers: no edit of it passes,
whatever seal it bears.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.reading.support import lake_of
from tests.store.support import build_store, copy_store
from tokenlake import Manifest, verify
from tokenlake.cli.app import main
from tokenlake.errors import IntegrityError
from tokenlake.etl.integrity import config_problems
from tokenlake.runtime.store import Layout, Store, open_store, seal

FREE: Final = {
    "name": "what the user called the tokenizer; no file of the version repeats it",
    "revision": "the commit of the Hub that it came from; no file of the version repeats it",
}
"""Facts of a tokenizer that anybody may state otherwise, and why."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    root = tmp_path_factory.mktemp("origins")
    return copy_store(build_store(root, tokenizer_dir), root / "copy")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value, of mappings and lists too."""
    if at:
        yield at
    keys = (
        value
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    for key in keys:
        yield from places(value[key], (*at, key))


def others(value: Any) -> list[Any]:
    """Return what could stand in the place of a value: another of its kind, and what
    has another form.
    """
    near: dict[type, list[Any]] = {
        bool: [not value],
        int: [value + 1 if isinstance(value, int) else 0, -5, 10**30],
        float: [0.25],
        str: [f"{value}x", "../../etc", ""],
        list: [[*value, 1] if isinstance(value, list) else [], []],
        dict: [{}, {"x": 1}],
    }
    found = [*near.get(type(value), [0]), None, {"a": []}]
    return [each for each in found if each != value or type(each) is not type(value)]


def changed(whole: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a copy with one value replaced; without it where the value is ``...``."""
    found = inside = copy.deepcopy(whole)
    for key in at[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[at[-1]]
    else:
        inside[at[-1]] = value
    return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_store(
        Path(lake_of(tmp_path_factory).url), tmp_path_factory.mktemp("kinds") / "copy"
    )


@pytest.mark.parametrize("part", ["tokenizer", "config"])
def test_no_other_fact_of_a_resealed_manifest_passes(part: str, store: Path) -> None:
    passed, tried = edited(store, "small", 2, part)
    assert tried > 200
    assert passed == (set(FREE) if part == "tokenizer" else set())


@pytest.mark.parametrize(
    ("name", "option"), [("texts", "kept"), ("judged", "preference")]
)
def test_options_that_say_what_rows_are_are_read_with_care(
    name: str, option: str, lake: Path
) -> None:
    passed, tried = edited(lake, name, 1, "config", option)
    assert tried > 10
    assert passed == set()


def edited(
    root: Path, name: str, version: int, part: str, option: str | None = None
) -> tuple[set[str], int]:
    """Return which values of a part of a manifest can be others without being found,
    and how many were tried.
    """
    folder = root / name / f"v{version}"
    # Whoever edits a manifest edits its copy, too: else verification finds that they
    # differ.
    paths = (folder / "manifest.json", folder / "runs" / "manifest-copy.json")
    original = paths[0].read_bytes()
    whole = json.loads(original)
    lake, passed, tried = open_store(root), set[str](), 0
    assert verify(lake, name, version, deep=True).ok
    try:
        for at in [at for at in places(whole[part]) if option is None or option in at]:
            for value in [..., *others(_at(whole[part], at))]:
                tried += 1
                data = seal(whole | {part: changed(whole[part], at, value)})
                if _is_refused(lake, Layout(name, version), data):
                    continue
                for path in paths:
                    path.write_bytes(data)
                if verify(lake, name, version, deep=True).ok:
                    passed.add(at[-1])
    finally:
        for path in paths:
            path.write_bytes(original)
    return passed, tried


def _is_refused(lake: Store, layout: Layout, data: bytes) -> bool:
    """Say whether a manifest cannot be read, or contradicts the files of its
    version: most of a deep verification.
    """
    try:
        return bool(config_problems(lake, layout, Manifest.from_bytes(data)))
    except IntegrityError:
        return True


def _at(value: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        value = value[key]
    return value


@pytest.mark.parametrize("value", [5, "x", [], None])
@pytest.mark.parametrize(
    "at",
    [
        ("tokenizer", "notes"),
        ("tokenizer", "notes", "files"),
        ("tokenizer", "notes", "pad_id"),
        ("tokenizer", "notes", "probe_ids"),
        ("config", "build"),
        ("config", "sources"),
        ("config", "sources", "notes"),
        ("config", "sources", "notes", "tokenizer"),
    ],
)
def test_a_hostile_manifest_is_damage_to_every_command(
    at: tuple[str, ...], value: Any, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store / "small" / "v2" / "manifest.json"
    original = path.read_bytes()
    path.write_bytes(seal(changed(json.loads(original), at, value)))
    try:
        assert main(["verify", "small@v2", "--deep", "--store", str(store)]) == 3
        codes = {
            main([command, "small@v2", "--store", str(store)])
            for command in ("show", "peek")
        }
    finally:
        path.write_bytes(original)
    assert codes <= {0, 1, 3}
    assert "this is a bug" not in capsys.readouterr().err


def test_other_files_of_the_version_are_looked_into_with_care(
    store: Path, tmp_path: Path
) -> None:
    """A hostile store may reseal what the manifest says of its files, too."""
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, one in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for name, data in (
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"- 2001-01-01\n"),
        ("config.yaml", bomb.encode()),
        ("tokenizer/tokenizer.json", b"{}"),
        ("tokenizer/tokenizer.json", b'{"model": 5, "added_tokens": 3}'),
    ):
        root = copy_store(store, tmp_path / "hostile")
        put(root / "small" / "v2", name, data)
        report = verify(open_store(root), "small", 2, deep=True)
        assert {problem.problem for problem in report.problems} >= {
            "config" if name == "config.yaml" else "tokenizer of notes"
        }
        shutil.rmtree(root)


def put(version: Path, name: str, data: bytes) -> None:
    (version / name).write_bytes(data)
    whole = json.loads((version / "manifest.json").read_bytes())
    whole["other_files"][name] = {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    for facts in whole["tokenizer"].values():
        if name.startswith("tokenizer/"):
            facts["files"]["tokenizer.json"] = whole["other_files"][name]["sha256"]
    (version / "manifest.json").write_bytes(seal(whole))
