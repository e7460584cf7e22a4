"""What notebooks and prompts show of objects: one line, or a small table in which no
text becomes a tag.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import tokenlake as tl
from tests.loader.support import plain
from tests.reports.test_html import EVIL, HOSTILE, Skeleton
from tokenlake import VerifyReport
from tokenlake.base import grid, named_facts
from tokenlake.etl.integrity.findings import Problem


def built(tmp_path: Path, tokenizer_dir: Path) -> tuple[Any, ...]:
    """A plan and the result of its build."""
    (tmp_path / "texts.jsonl").write_text(
        '{"text": "a lake"}\n{"text": "holds water"}\n'
    )
    config = {
        "name": "small",
        "datasets": [{"name": "texts", "data_files": str(tmp_path / "texts.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "pack": {"enabled": True, "seq_length": 16},
        "save": {"output_dir": str(tmp_path / "out")},
    }
    return tl.plan(config), tl.build_dataset(config)


def html_of(value: Any) -> str:
    return value._repr_html_()


def test_all_that_users_get_is_short_and_a_table(
    tmp_path: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan, result = built(tmp_path, tokenizer_dir)
    store = tmp_path / "out"
    assert (
        tl.verify(store, "small")
        == tl.verify(str(store), "small@v1")
        == tl.verify(store, "small", 1)
    )
    report = tl.verify(store, "small", deep=True)
    assert report.ok and report.rows == 1
    ds = plain(tmp_path_factory)
    mixture = tl.Mixture({"a\nb": ds, "<b>": ds}, {"a\nb": 0.5, "<b>": 0.5}, rows=8)
    loader = tl.DataLoader(mixture, batch_size=4)
    endless = tl.DataLoader(ds, batch_size=4)
    for each in (ds, mixture, loader, endless, ds.manifest, report, plan, result):
        line, table = repr(each), html_of(each)
        assert (
            line.startswith(type(each).__name__)
            and len(line.splitlines()) == 1
            and len(line) < 200
        )
        assert {name for name, *_ in Skeleton(table).tags if name[0] != "/"} <= {
            *("div", "b", "p", "table", "thead", "tbody", "tr", "th", "td"),
        }
    assert repr(loader) == f"DataLoader({mixture!r}, batches of 4, at step 0)"
    assert repr(result).startswith("BuildResult(small@v1: built, 1 unit, ")
    assert (
        repr(plan)
        == f"Plan(small: packed, 1 unit, {(tmp_path / 'texts.jsonl').stat().st_size} B of input)"
    )
    assert repr(result.manifest).startswith("Manifest(small@v1: packed, 1 row, ")
    assert "window=&#x27;all&#x27;" in html_of(loader)
    assert "&lt;b&gt;" in html_of(mixture) and "<b>:" not in html_of(mixture)


@given(text=HOSTILE)
def test_no_text_of_a_fact_becomes_a_tag(text: str) -> None:
    def shown(text: str) -> list[tuple[str, ...]]:
        # A name of its own beside the text: with a fixed one, that text itself would
        # make one row of two.
        table = named_facts(
            text, {text: text, text + "n": 1}, (text, "b"), [(text, "1")]
        )
        return Skeleton(table + grid([text], [[text]], ["left"]).text).tags

    assert shown(text) == shown("harmless")


@pytest.mark.parametrize("text", EVIL)
def test_a_hostile_store_cannot_speak_through_a_report(text: str) -> None:
    problem = Problem(text, text, text, text)
    report = VerifyReport(dataset=text, version=1, deep=True, problems=(problem,) * 30)
    calm = Problem("x", "x", "x", "x")
    assert (
        Skeleton(html_of(report)).tags
        == Skeleton(html_of(replace(report, dataset="x", problems=(calm,) * 30))).tags
    )
    assert len(repr(report).splitlines()) == 1 and "30 problems" in repr(report)
    assert "and 10 more" in html_of(report)
