"""Nothing that a user names as an output lies in a store: committed files are never
replaced by exports and reports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.builds import Config, config_of
from tests.etl.remote_builds_support import Bucket, bucket
from tests.lazily import lazily
from tests.servers.s3 import KEY, SECRET
from tests.store.support import copy_store, shared_store
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset

app: Any = lazily("tokenlake.cli.app")
observability: Any = lazily("tokenlake.etl.observability.metrics")
stages: Any = lazily("tokenlake.config.stages")

REFUSED = r"(is|lies in) (a version of a dataset|the folder of a dataset's versions|the root of a store)"


@pytest.fixture
def store(tokenizer_dir: Path, tmp_path: Path) -> Path:
    return copy_store(shared_store(tokenizer_dir), tmp_path / "lake")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def save(place: str | Path) -> None:
    """Write an export, as users name its folder."""
    tl.save_dataset([{"id": 1}], place, overwrite=True)


PLACES = {
    "the data of a version": ("small/v1/data", "version"),
    "a version": ("small/v1", "version"),
    "a new folder in a version": ("small/v1/new/deep", "version"),
    "a dataset": ("small", "dataset"),
    "a new folder in a dataset": ("small/v3", "dataset"),
    "another case": ("small/V1/data", "dataset"),
    "dots": ("small/v1/ledger/../data", "version"),
    "a folder that is not there, and dots": ("none/../small/v1/data", "version"),
    "the root": (".", "store"),
    "a new folder in the root": ("flat/out", "store"),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_in_a_store_is_refused(store: Path, place: str) -> None:
    path, part = PLACES[place]
    with pytest.raises(ConfigError, match=REFUSED) as caught:
        save(f"{store}/{path}")
    assert caught.value.details["part"] == part
    with pytest.raises(ConfigError, match="file:// is not available"):
        save(f"file://{store}/{path}")


def test_links_into_a_store_are_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store / "small")
    (tmp_path / "direct").symlink_to(store / "small" / "v1" / "data")
    for path in ("link/v1/data", "link/new", "direct", "direct/new"):
        with pytest.raises(ConfigError, match=REFUSED):
            save(tmp_path / path)


def test_unfinished_removed_and_copied_versions_count(store: Path) -> None:
    version = store / "small" / "v2"
    (version / "manifest.json").unlink()
    (store / "small" / "v1" / "claim.json").unlink(missing_ok=True)
    for path in ("small/v1/data", "small/v2/data"):
        with pytest.raises(ConfigError, match=REFUSED):
            save(store / path)
    (store / "gone" / "v1").mkdir(parents=True)
    (store / "gone" / "v1" / "manifest.json").write_bytes(
        b'{"closed":true,"dataset":"gone"}'
    )
    with pytest.raises(ConfigError, match=REFUSED):
        save(store / "gone" / "v1" / "data")


def test_other_folders_are_no_stores(tmp_path: Path, store: Path) -> None:
    """A manifest.json in a folder v1 is common: of browser extensions and web pages,
    too.
    """
    extension = tmp_path / "project" / "extension" / "v1"
    extension.mkdir(parents=True)
    (extension / "manifest.json").write_text('{"manifest_version": 3}')
    for path in (
        "project/out",
        "project/extension/v1/out",
        "out",
        "lake-2/out",
        "small/v1",
    ):
        save(tmp_path / path)


Writer = Callable[[Path, str, Config], object]


def _export(store: Path, place: str, config: Config) -> None:
    tl.export_version(store, place, name="small@v2", overwrite=True)


def _save(store: Path, place: str, config: Config) -> None:
    tl.save_dataset([{"id": 1}], place, overwrite=True)


def _writer(store: Path, place: str, config: Config) -> None:
    tl.create_writer(place, overwrite=True)


def _tokenize(store: Path, place: str, config: Config) -> None:
    source = config["datasets"][0]
    tl.tokenize_and_save(
        source["data_files"], source["tokenizer"], place, overwrite=True
    )


def _report(store: Path, place: str, config: Config) -> None:
    tl.report(store, f"{place}/report.html", name="small@v2")


def _pages(store: Path, place: str, config: Config) -> None:
    tl.report_store(store, place)


def _list(store: Path, place: str, config: Config) -> None:
    tl.clean_dataset(config | {"clean": {"output": f"{place}/exclude.parquet"}})


def _metrics(store: Path, place: str, config: Config) -> None:
    section = stages.ObservabilityConfig(metrics_file=f"{place}/metrics.prom")
    observability.metrics_export(section, dict)


def _save_path(store: Path, place: str, config: Config) -> None:
    config["datasets"][0]["save_path"] = place
    config["save"]["overwrite"] = True
    build_dataset(config, workers=0)


def _nested_store(store: Path, place: str, config: Config) -> None:
    config["save"]["output_dir"] = place
    build_dataset(config, workers=0)


def _nested_store_by_url(store: Path, place: str, config: Config) -> None:
    _nested_store(store, f"file://{place}", config)


@pytest.mark.parametrize(
    "write",
    [
        _export,
        _save,
        _writer,
        _tokenize,
        _report,
        _pages,
        _list,
        _metrics,
        _save_path,
        _nested_store,
        _nested_store_by_url,
    ],
)
def test_every_writer_refuses_and_leaves_all_as_it_was(
    store: Path, tmp_path: Path, tokenizer_dir: Path, write: Writer
) -> None:
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "a river"}\n')
    before = contents(store)
    with pytest.raises(ConfigError, match=REFUSED):
        write(
            store,
            str(store / "small" / "v1" / "data"),
            config_of(tmp_path / "other", data, tokenizer_dir),
        )
    assert contents(store) == before
    assert not list((store / "small").rglob(".*"))


def test_an_export_into_the_store_of_its_build_is_refused_before_the_build(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    """The store holds nothing yet, so that nothing there shows that it is one."""
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "a river"}\n')
    config = config_of(
        tmp_path, data, tokenizer_dir, save_path=str(tmp_path / "store" / "flat")
    )
    with pytest.raises(ConfigError, match="lies in the store"):
        build_dataset(config, workers=0)
    assert not (tmp_path / "store").exists()


def test_the_command_refuses(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(store)
    place = os.path.relpath(store / "small" / "v1" / "data")
    assert (
        app.main(["export", "small", place, "--overwrite", "--store", str(store)]) == 2
    )
    assert "a version of a dataset" in " ".join(capsys.readouterr().err.split())
    assert contents(store) == before


def test_exports_that_a_configuration_puts_into_its_own_store_stay_allowed(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "a river"}\n')
    config = config_of(tmp_path, data, tokenizer_dir)
    config["save"]["format"] = "jsonl"
    build_dataset(config, workers=0)
    assert (
        tmp_path / "store" / "_exports" / "set" / "v1" / "_tokenlake" / "manifest.json"
    ).is_file()


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket("gs") as served:
        monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
        monkeypatch.setenv("LAKE_KEY", KEY)
        monkeypatch.setenv("LAKE_SECRET", SECRET)
        monkeypatch.setenv(
            "TOKENLAKE_STORE_OPTIONS", json.dumps(dict(served.address("x").options))
        )
        yield served


def test_places_in_buckets(where: Bucket, tmp_path: Path, tokenizer_dir: Path) -> None:
    where.put(
        "lake",
        {
            "small/v1/manifest.json": b"{}",
            "small/v1/data/train-00000-00.parquet": b"PAR1",
        },
    )
    root = where.address("lake").url
    before = where.everything("lake")
    for path in (
        "/small/v1/data",
        "/small/v1",
        "/small/new",
        "/small",
        "",
        "/flat",
        "/new/deep/er",
    ):
        with pytest.raises(ConfigError, match=REFUSED):
            tl.save_dataset([{"id": 1}], f"{root}{path}", overwrite=True)
    for path in ("/x/../small/v1/data", "//small/v1/data", "/small/v1/%2e%2e/data"):
        with pytest.raises(ConfigError, match=r"has an empty, '\.' or '\.\.' part"):
            tl.save_dataset([{"id": 1}], f"{root}{path}", overwrite=True)
    assert where.everything("lake") == before
    (tmp_path / "in.jsonl").write_text('{"text": "a river"}\n')
    config = config_of(tmp_path, tmp_path / "in.jsonl", tokenizer_dir)
    config["save"]["output_dir"] = f"{root}/small/v1/data"
    with pytest.raises(ConfigError, match=REFUSED):
        build_dataset(config, workers=0)
    tl.save_dataset([{"id": 1}], f"{root}-2")
