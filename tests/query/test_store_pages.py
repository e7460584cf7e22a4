"""Pages of real stores: links, states, damage, what is written again, and what is
never written over.
"""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import tokenlake as tl
from tests.builds import Config
from tests.etl.remote_builds_support import bucket
from tests.proof.support import KEY, key_file
from tests.reports.test_html import EVIL
from tests.rowwise.mixed_store import build_mixtures
from tests.servers.s3 import KEY as S3_KEY
from tests.servers.s3 import SECRET
from tests.store.support import copy_store, shared_store
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from tokenlake.etl import build_dataset
from tokenlake.runtime.proof import prove_state
from tokenlake.runtime.store import open_store


@pytest.fixture(scope="module")
def store(tokenizer_dir: Path) -> Path:
    return shared_store(tokenizer_dir)


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_mixtures(tmp_path_factory.mktemp("mixtures"), tokenizer_dir)


class Links(HTMLParser):
    """Links and ids of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a":
            self.links.append(attributes["href"] or "")
        # The script of the lineage finds a line by this attribute.
        for name in ("id", "data-key"):
            if attributes.get(name):
                self.ids.add(attributes[name] or "")


def broken_links(folder: Path) -> list[str]:
    """Links that lead to no page of the folder, or to no place in it."""
    pages = {
        path.resolve(): Links(path) for path in folder.rglob("*.html") if path.is_file()
    }
    broken: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            place, anchor = urldefrag(link)
            target = path if place == "" else (path.parent / unquote(place)).resolve()
            if target not in pages or (
                anchor and unquote(anchor) not in pages[target].ids
            ):
                broken.append(f"{path.name}: {link}")
    return broken


def rows_of(page: Path) -> list[dict[str, Any]]:
    """The rows that a browser of rows holds."""
    text = page.read_text(encoding="utf-8")
    data = re.findall(
        r'<script type="application/json" id="page-data">(.*?)</script>',
        text,
        re.DOTALL,
    )
    return json.loads(data[0])["rows"]


def identity_of_files(folder: Path) -> dict[str, int]:
    """Inode of each page: a page that is written again has another one."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_ino
        for path in folder.rglob("v*.html")
    }


def test_every_version_has_pages_and_every_link_a_target(
    mixtures: Path, tmp_path: Path
) -> None:
    report = tl.report_store(mixtures, tmp_path / "site")
    versions = list(tl.Catalog(open_store(mixtures)).committed_versions())
    assert (report.versions, report.written, report.removed, report.damaged) == (
        len(versions),
        len(versions),
        0,
        0,
    )
    assert report.index == tmp_path / "site" / "index.html"
    for layout in versions:
        for ending in (".html", "-rows.html"):
            assert (
                tmp_path
                / "site"
                / "datasets"
                / layout.dataset
                / f"v{layout.version}{ending}"
            ).is_file()
    assert broken_links(tmp_path / "site") == []
    assert not list((tmp_path / "site").glob(".tokenlake-*.tmp"))


def test_the_browser_has_rows_of_all_splits_as_peek_shows_them(
    store: Path, tmp_path: Path
) -> None:
    tl.report_store(store, tmp_path / "site", sample_rows=16)
    manifest = tl.Catalog(open_store(store)).manifest("small", 2)
    rows = rows_of(tmp_path / "site" / "datasets" / "small" / "v2-rows.html")
    assert {row["split"] for row in rows} == set(manifest.splits)
    assert len(rows) == len({(row["split"], row["row"]) for row in rows}) <= 16
    text = "".join(
        run
        for row in rows
        for document in row["documents"]
        for run, _ in document["runs"]
    )
    assert "the river rose by" in text
    assert any(
        "river.txt:" in document["origin"]
        for row in rows
        for document in row["documents"]
    )


def test_a_small_version_is_shown_whole(store: Path, tmp_path: Path) -> None:
    tl.report_store(store, tmp_path / "site", sample_rows=10_000)
    rows = rows_of(tmp_path / "site" / "datasets" / "small" / "v1-rows.html")
    assert len(rows) == tl.Catalog(open_store(store)).manifest("small", 1).totals.rows


def test_only_pages_of_versions_that_changed_are_written_again(
    store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "store")
    site = tmp_path / "site"
    tl.report_store(copy, site)
    first = identity_of_files(site)
    assert tl.report_store(copy, site).written == 0
    assert identity_of_files(site) == first

    # A tag is shown by the index, not by the pages of its version.
    tl.tag(copy, "prod", name="small@v1")
    assert tl.report_store(copy, site).written == 0
    assert "prod" in (site / "index.html").read_text()

    # A page that was removed comes back alone, and another sample changes all of them.
    (site / "datasets" / "small" / "v1-rows.html").unlink()
    assert tl.report_store(copy, site).written == 1
    assert (
        identity_of_files(site)["datasets/small/v2.html"]
        == first["datasets/small/v2.html"]
    )
    assert tl.report_store(copy, site, sample_rows=8).written == 2

    # v2 shows its difference from v1, so that it changes when v1 goes.
    tl.tag(copy, "prod", name="small@v2")
    tl.remove_version(copy, "small@v1")
    report = tl.report_store(copy, site, sample_rows=8)
    assert (report.versions, report.written, report.removed) == (1, 1, 1)
    assert sorted(path.name for path in (site / "datasets" / "small").iterdir()) == [
        "v2-rows.html",
        "v2.html",
    ]
    assert broken_links(site) == []


def test_damage_is_shown_and_hides_nothing_else(store: Path, tmp_path: Path) -> None:
    copy = copy_store(store, tmp_path / "store")
    (copy / "small" / "v1" / "manifest.json").write_text("{")
    shards = sorted((copy / "small" / "v2" / "data").iterdir())
    for shard in shards:
        shard.write_bytes(shard.read_bytes()[:-20])
    site = tmp_path / "site"
    report = tl.report_store(copy, site)
    assert (report.versions, report.written, report.damaged) == (1, 1, 2)
    index = (site / "index.html").read_text()
    assert "state-unreadable" in index and "small/v1/manifest.json" in index
    assert "state-damaged" in index and "small@v2: data/" in index
    page = (site / "datasets" / "small" / "v2.html").read_text()
    assert (
        "Data of this version is damaged" in page
        and 'id="audit"' in page
        and 'id="lengths"' not in page
    )
    assert (
        "to list all damage"
        in (site / "datasets" / "small" / "v2-rows.html").read_text()
    )

    # The repaired version is read again, although its manifest is the same.
    for shard in shards:
        shard.write_bytes((store / shard.relative_to(copy)).read_bytes())
    assert tl.report_store(copy, site).damaged == 1
    assert 'id="lengths"' in (site / "datasets" / "small" / "v2.html").read_text()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_was_damaged_since_is_shown_without_sampled_rows(
    damage: str, store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "store")
    site = tmp_path / "site"
    assert tl.report_store(copy, site, sample_rows=0).damaged == 0
    clean_page = (site / "datasets" / "small" / "v2.html").read_text()

    shard = sorted((copy / "small" / "v2" / "data").iterdir())[-1]
    data = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(data[:-1])
    report = tl.report_store(copy, site, sample_rows=0)
    assert (report.versions, report.written, report.damaged) == (2, 1, 1)
    page = (site / "datasets" / "small" / "v2.html").read_text()
    assert f"small@v2: data/{shard.name} " in page
    index = (site / "index.html").read_text()
    assert "state-damaged" in index and "tokenlake repair small@v2" in index

    # The repaired version has its clean page again.
    shard.write_bytes(data)
    assert tl.report_store(copy, site, sample_rows=0).damaged == 0
    assert (site / "datasets" / "small" / "v2.html").read_text() == clean_page
    assert tl.report_store(copy, site, sample_rows=0).written == 0


def test_builds_that_failed_stopped_or_run_are_listed(
    store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "store")
    catalog = tl.Catalog(open_store(copy))
    for name in ("failed", "cancelled", "idle", "running"):
        catalog.claim(name, "a" * 64, {})
    records = {
        "failed": (
            "20260101T000000Z-aabbccdd-failed.json",
            {"error": "a.jsonl:17: <b>no object</b>"},
        ),
        "cancelled": ("20260101T000000Z-aabbccdd-cancelled.json", {}),
    }
    for name, (file_name, record) in records.items():
        runs = copy / name / "v1" / "runs"
        runs.mkdir()
        (runs / file_name).write_text(json.dumps(record))
    os.utime(copy / "idle" / "v1" / "claim.json", (0, 0))
    report = tl.report_store(copy, tmp_path / "site")
    assert (report.versions, report.unfinished, report.damaged) == (2, 4, 0)
    index = (tmp_path / "site" / "index.html").read_text()
    for name in ("failed", "cancelled", "idle", "running"):
        assert f'{name}@v1</b> <span class="state state-{name}">' in index
    assert "a.jsonl:17: &lt;b&gt;no object&lt;/b&gt;" in index
    assert "last change 1970-01-01 00:00 UTC" in index


def test_damaged_tags_are_a_sentence(store: Path, tmp_path: Path) -> None:
    copy = copy_store(store, tmp_path / "store")
    tl.tag(copy, "prod", name="small@v1")
    (copy / "small" / "tags" / "prod.json").write_text("{")
    tl.report_store(copy, tmp_path / "site")
    assert (
        "The tags of small are left out: small/tags/prod.json"
        in (tmp_path / "site" / "index.html").read_text()
    )


def test_exports_and_statements_are_in_the_lineage(store: Path, tmp_path: Path) -> None:
    copy = copy_store(store, tmp_path / "store")
    tl.export_version(copy, tmp_path / "out", "jsonl", name="small@v2")
    (copy / "_exports" / "small").mkdir(parents=True)
    (tmp_path / "out").rename(copy / "_exports" / "small" / "v2")
    (copy / "_exports" / "small" / "v3").mkdir()  # an export that was interrupted
    tl.export_version(copy, tmp_path / "elsewhere", name="small@v1")
    with (
        tl.open(copy, "small@v2", split="train") as data,
        tl.DataLoader(data, batch_size=2, seed=0) as loader,
    ):
        next(iter(loader))
        state = loader.get_state()

    def open_dataset(name: str, split: str) -> tl.Dataset:
        return tl.open(copy, name, split=split)

    statement = tmp_path / "run.json"
    statement.write_bytes(prove_state(state, open_dataset, key_file(tmp_path)))
    site = tmp_path / "site"
    tl.report_store(copy, site, include=[tmp_path / "elsewhere", statement])
    lineage = (site / "lineage.html").read_text()
    for origin, target in (
        ("small@v2", "export:_exports/small/v2"),
        ("small@v1", f"export:{tmp_path / 'elsewhere'}"),
        ("small@v2", f"statement:{statement}"),
    ):
        assert f'data-from="{origin}" data-to="{target}"' in lineage
    index = (site / "index.html").read_text()
    assert f"signed by {KEY.public_key().public_bytes_raw().hex()[:12]}" in index

    statement.write_bytes(
        statement.read_bytes().replace(b'"steps":[0,', b'"steps":[1,')
    )
    with pytest.raises(
        IntegrityError, match=r"run\.json: the signature does not match"
    ):
        tl.report_store(copy, site, include=[statement])
    with pytest.raises(
        ConfigError,
        match="is neither the folder of an export nor the file of a statement",
    ):
        tl.report_store(copy, site, include=[tmp_path / "nothing"])


def test_hostile_texts_stay_texts(tmp_path: Path, tokenizer_dir: Path) -> None:
    texts = [text for text in EVIL if "\x00" not in text and text.isprintable()]
    folder = tmp_path / "data"
    folder.mkdir()
    records = [
        {"instruction": text, "output": f"{text} {number}"}
        for number, text in enumerate(texts * 2)
    ]
    (folder / "<b>'\"&.jsonl").write_text("\n".join(map(json.dumps, records)))
    prompt = {
        "template": "{instruction}: {output}",
        "input_columns": ["instruction"],
        "label_column": "output",
    }
    source = {
        "name": "s",
        "data_files": str(folder),
        "prompt": prompt,
        "additional_fields": ["output"],
    }
    config: Config = {
        "name": "index.html",
        "datasets": [source],
        "default_tokenizer": str(tokenizer_dir),
        "pack": {"enabled": False},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    build_dataset(config, workers=1)
    site = tmp_path / "site"
    tl.report_store(tmp_path / "store", site)
    for page in site.rglob("*.html"):
        if page.is_dir():  # of the dataset
            continue
        markup = page.read_text(encoding="utf-8")
        assert "alert(1)" not in re.sub(
            r"\\u003cscript\\u003ealert\(1\)|&lt;script&gt;alert\(1\)|onerror=alert\(1\)",
            "",
            markup,
        )
        assert "<img" not in markup and "<b>'" not in markup
    rows = rows_of(site / "datasets" / "index.html" / "v1-rows.html")
    assert rows[0]["kept"]["output"] == f"{texts[0]} 0"
    marks = [mark for _, mark in rows[0]["documents"][0]["runs"]]
    assert marks == [False, True]
    assert broken_links(site) == []


def test_a_folder_with_other_files_is_left_alone(store: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("mine")
    with pytest.raises(
        ConfigError,
        match="holds other files than the pages of a store; nothing was written",
    ):
        tl.report_store(store, site)
    assert (site / "index.html").read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        tl.report_store(store, site / "index.html")
    for place in (store, store / "small", store / "small" / "v1" / "site"):
        with pytest.raises(ConfigError, match="nothing was written"):
            tl.report_store(store, place)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        '{"pages": []}',
        '{"pages": {"../../x@v1": "", "a": "", "small@v0": ""}}',
    ],
)
def test_a_damaged_record_leads_nowhere(
    store: Path, tmp_path: Path, record: str
) -> None:
    outside = tmp_path / "x" / "v1.html"
    outside.parent.mkdir()
    outside.write_text("mine")
    site = tmp_path / "site"
    tl.report_store(store, site)
    (site / ".tokenlake-pages.json").write_text(record.replace("STORE", str(store)))
    report = tl.report_store(store, site)
    assert (report.written, report.removed) == (2, 0)
    assert outside.read_text() == "mine"


def test_a_store_without_datasets_has_no_pages(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there are no datasets in"):
        tl.report_store(tmp_path / "none", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_call_that_was_interrupted_is_completed(
    mixtures: Path, tmp_path: Path
) -> None:
    """The first call ends after three pages of versions, as if it were killed;
    nothing but whole pages is left.
    """
    site = tmp_path / "site"

    def interrupt(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("writing pages", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tl.report_store(mixtures, site, on_progress=interrupt)
    pages = [path for path in site.rglob("*.html") if path.is_file()]
    assert len(pages) == 6
    assert all(path.read_text(encoding="utf-8").endswith("</html>\n") for path in pages)
    (site / ".tokenlake-0-1.tmp").write_text("half")
    report = tl.report_store(mixtures, site)
    assert report.written == report.versions > 3
    assert broken_links(site) == []


def test_pages_of_another_store_or_of_one_that_is_not_mounted_stay(
    store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "store")
    site = tmp_path / "site"
    tl.report_store(copy, site)
    pages = identity_of_files(site)
    with pytest.raises(
        ConfigError,
        match=f"holds the pages of another store, {copy}; expected those of {store}",
    ):
        tl.report_store(store, site)
    copy.rename(tmp_path / "elsewhere")
    copy.mkdir()
    with pytest.raises(NotFoundError, match="no pages were written"):
        tl.report_store(copy, site)
    assert identity_of_files(site) == pages


def test_a_sample_has_no_negative_size(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sample_rows: got -1"):
        tl.report_store(store, tmp_path / "site", sample_rows=-1)
    tl.report_store(store, tmp_path / "site", sample_rows=0)
    assert (
        "No rows were sampled."
        in (tmp_path / "site" / "datasets" / "small" / "v1-rows.html").read_text()
    )


def test_a_bucket_has_the_same_pages(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", S3_KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    with bucket("s3") as served:
        files = {
            path.relative_to(store).as_posix(): path.read_bytes()
            for path in store.rglob("*")
            if path.is_file()
        }
        served.put("lake", files)
        address = served.address("lake")
        phases: set[str] = set()
        tl.report_store(
            address.url,
            tmp_path / "remote",
            storage_options=address.options,
            on_progress=lambda phase, done, total: phases.add(phase),
        )
    tl.report_store(store, tmp_path / "local")
    assert phases == {"reading manifests", "writing pages"}
    for path in (tmp_path / "local" / "datasets").rglob("*.html"):
        assert (
            path.read_bytes()
            == (tmp_path / "remote" / path.relative_to(tmp_path / "local")).read_bytes()
        )


def test_a_web_server_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(
        (ConfigError, StoreError), match="a web server does not list its files"
    ):
        tl.report_store("http://127.0.0.1:9/store", tmp_path / "site")
