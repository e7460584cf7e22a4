"""Pages of a store from their contents: escapes, the graph and its layout, and the
policy of pages with scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.test_html import EVIL, HOSTILE, Skeleton
from tests.store.support import a_manifest
from tokenlake.etl.reports.store_pages import (
    DecodedDocument,
    DecodedRow,
    ExportSummary,
    InputSet,
    LineageGraph,
    StatementSummary,
    StoreContents,
    VersionName,
    VersionSummary,
    build_graph,
    place_boxes,
    render_index,
    render_lineage,
    render_rows,
    version_page,
)
from tokenlake.runtime.store import Parent

TOTALS = a_manifest().totals


def seal(name: VersionName) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def version(
    dataset: str, number: int, *parents: VersionName, **fields: object
) -> VersionSummary:
    """A committed version with one input file, or made from other versions."""
    name = VersionName(dataset, number)
    origins = [
        Parent(dataset=parent.dataset, version=parent.version, sha256=seal(parent))
        for parent in parents
    ]
    values: dict[str, object] = {
        "name": name,
        "state": "committed",
        "kind": "mixture" if parents else "tokens",
        "sha256": seal(name),
        "totals": TOTALS,
        "inputs": () if parents else (InputSet("s", 1, 10, f"{name}"),),
        "parents": tuple(origins),
        "changed": 0.0,
    }
    return VersionSummary(**{**values, **fields})  # pyright: ignore[reportArgumentType]


def store_of(*versions: VersionSummary, **fields: object) -> StoreContents:
    return StoreContents("artifacts", versions, **fields)  # pyright: ignore[reportArgumentType]


def lines_of(graph: LineageGraph) -> dict[str, int]:
    """Column of each line, by its key."""
    return {line.key: box.column for box in graph.boxes for line in box.lines}


# -- Escapes


def every_page(text: str) -> list[str]:
    """The three pages of a store that has a text in each place where one may come
    from data.
    """
    name = VersionName("code", 1)
    committed = version("code", 1, tags=(text,), inputs=(InputSet(text, 2, 10, text),))
    failed = VersionSummary(
        name=VersionName("code", 2), state="failed", error=text, units=3
    )
    contents = StoreContents(
        text,
        (committed, failed),
        exports=(
            ExportSummary(text, seal(name), text, 1, 9),
            ExportSummary(f"{text}/", "0" * 64, text, 1, 9),
        ),
        statements=(StatementSummary(text, text, (0, 9), (seal(name), "1" * 64)),),
        problems=(text,),
    )
    document = DecodedDocument(text, text, text, ((text, True), (text, False)), text)
    other = DecodedDocument(f"{text} ", text, text, ((text, None),))
    rows = [
        DecodedRow(text, 0, text, text, (document,), {text: text}, text),
        DecodedRow(f"{text} ", 1, text, text, (other,), {}),
    ]
    return [
        render_index(contents, 0, text),
        render_lineage(contents),
        render_rows(name, rows, 9),
        render_rows(name, [], 9, text),
    ]


@given(text=HOSTILE)
def test_no_text_becomes_a_part_of_a_page(text: str) -> None:
    for page, harmless in zip(every_page(text), every_page("harmless"), strict=True):
        assert Skeleton(page).tags == Skeleton(harmless).tags
        page.encode()


@pytest.mark.parametrize("text", EVIL)
def test_rows_are_read_as_they_are_and_cannot_end_their_element(text: str) -> None:
    page = every_page(text)[2]
    data = re.findall(
        r'<script type="application/json" id="page-data">(.*?)</script>',
        page,
        re.DOTALL,
    )
    assert len(data) == 1
    assert not set(data[0]) & set("<>&\u202e\x00\x1b")
    assert json.loads(data[0])["rows"][0]["documents"][0]["runs"] == [
        [text, True],
        [text, False],
    ]


def test_a_page_runs_its_own_script_alone() -> None:
    for page in every_page("harmless")[:3]:
        scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        assert len(scripts) == 1
        digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
        policy = unescape(
            re.findall(r'Content-Security-Policy" content="(.*?)"', page)[0]
        )
        assert policy.split("; ")[0] == "default-src 'none'"
        assert policy.split("; ")[-1] == f"script-src 'sha256-{digest}'"
        # Scripts set texts as text, and reach for nothing.
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|fetch|XMLHttp|import\(",
            scripts[0],
        )
        assert "url(" not in page and "@import" not in page and "http://" not in page


# -- Index


def test_the_index_lists_versions_newest_first_and_folds_old_ones() -> None:
    versions = [version("code", number) for number in range(1, 15)]
    words = Skeleton(render_index(store_of(*versions), 0, "tokenlake")).words
    assert [word for word in words if re.fullmatch(r"v\d+", word)] == [
        f"v{n}" for n in range(14, 0, -1)
    ]
    assert "4 older versions" in words
    assert "1970-01-01 00:00 UTC" in words


def test_builds_and_damage_come_first_with_their_errors() -> None:
    states = ("running", "idle", "failed", "cancelled", "unreadable", "damaged")
    versions = [
        VersionSummary(
            name=VersionName(f"d-{state}", 1),
            state=state,
            error=f"{state} because",
            units=7,
        )
        for state in states
    ]
    page = "".join(
        Skeleton(render_index(store_of(version("code", 1), *versions), 0, "")).words
    )
    assert page.index("failed because") < page.index("code 1 version")
    for state in states:
        assert f"d-{state}@v1 {state}" in page and f"{state} because" in page
    assert page.count("7 units done") == 4
    assert "4unfinished builds2damaged versions" in page


def test_an_empty_store_has_pages() -> None:
    assert "There are none yet" in render_index(store_of(), 0, "")
    assert "no committed versions yet" in render_lineage(store_of())


# -- Graph


def test_the_graph_leads_from_inputs_to_statements() -> None:
    code, web, pile = (
        VersionName("code", 1),
        VersionName("web", 1),
        VersionName("pile", 1),
    )
    graph = build_graph(
        store_of(
            version("code", 1),
            version("web", 1),
            version("pile", 1, code, web),
            exports=(ExportSummary("out/pile", seal(pile), "jsonl, none", 1, 9),),
            statements=(
                StatementSummary("run.json", "ab", (0, 10), (seal(pile), seal(code))),
            ),
        )
    )
    assert set(graph.arrows) == {
        ("input:s:code@v1", "code@v1"),
        ("input:s:web@v1", "web@v1"),
        ("code@v1", "pile@v1"),
        ("web@v1", "pile@v1"),
        ("pile@v1", "export:out/pile"),
        ("pile@v1", "statement:run.json"),
        ("code@v1", "statement:run.json"),
    }
    columns = lines_of(graph)
    assert (columns["input:s:code@v1"], columns["code@v1"], columns["pile@v1"]) == (
        0,
        1,
        2,
    )
    assert columns["export:out/pile"] == columns["statement:run.json"] == 3


def test_versions_that_read_the_same_files_share_them() -> None:
    same = (InputSet("s", 3, 30, "digest"),)
    graph = build_graph(
        store_of(version("a", 1, inputs=same), version("b", 1, inputs=same))
    )
    assert set(graph.arrows) == {("input:s:digest", "a@v1"), ("input:s:digest", "b@v1")}


def test_a_parent_that_is_gone_has_a_line() -> None:
    graph = build_graph(store_of(version("pile", 1, VersionName("gone", 4))))
    assert graph.arrows == (("gone@v4", "pile@v1"),)
    absent = [
        line for box in graph.boxes for line in box.lines if line.kind == "absent"
    ]
    assert [(line.title, line.label, line.detail) for line in absent] == [
        ("gone", "v4", "not in this store")
    ]


def test_old_versions_share_a_line_unless_a_shown_one_was_made_from_them() -> None:
    old = VersionName("code", 2)
    versions = [version("code", number) for number in range(1, 21)]
    graph = build_graph(store_of(*versions, version("pile", 1, old)))
    lines = lines_of(graph)
    assert [key for key in lines if key.startswith("code@v")] == [
        f"code@v{n}" for n in (20, 19, 18, 17, 16, 15, 2)
    ]
    labels = [
        line.label
        for box in graph.boxes
        for line in box.lines
        if line.key == "code@older"
    ]
    assert labels == ["13 older versions"]
    assert graph.folded == 13


@st.composite
def stores(draw: st.DrawFn) -> StoreContents:
    """A store of up to 60 versions, each of which is made from any versions that
    were made before it.
    """
    count = draw(st.integers(0, 60))
    names: list[VersionName] = []
    versions: list[VersionSummary] = []
    numbers: dict[str, int] = {}
    for _ in range(count):
        dataset = draw(st.sampled_from(["a", "b", "c", "d"]))
        numbers[dataset] = numbers.get(dataset, 0) + 1
        parents = (
            draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
            if names
            else []
        )
        names.append(VersionName(dataset, numbers[dataset]))
        versions.append(version(dataset, numbers[dataset], *parents))
    return store_of(*sorted(versions, key=lambda summary: summary.name))


@given(contents=stores())
def test_every_arrow_has_ends_and_boxes_do_not_overlap(contents: StoreContents) -> None:
    graph = build_graph(contents)
    columns = lines_of(graph)
    assert {key for arrow in graph.arrows for key in arrow} <= columns.keys()
    if not graph.folded:  # folding may close a circle, and then one arrow leads back
        assert all(columns[origin] < columns[target] for origin, target in graph.arrows)

    placed = place_boxes(graph)
    assert min((box.y for box in placed), default=0) == 0
    boxes_by_column: dict[float, list[tuple[float, float]]] = {}
    for box in placed:
        boxes_by_column.setdefault(box.x, []).append((box.y, box.y + box.height))
    for spans in boxes_by_column.values():
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert begin >= end


def test_parts_that_no_arrow_joins_stand_close_together() -> None:
    text = InputSet("text", 2, 10, "text")
    table = InputSet("table", 1, 10, "table")
    versions = [
        version("chat", 1, inputs=(InputSet("chat", 1, 10, "chat"),)),
        version("preference", 1, inputs=(InputSet("pairs", 1, 10, "pairs"),)),
        version("best-fit", 1, inputs=(text, table)),
        version("packed", 1, inputs=(text, table)),
        version("mixed.text", 1, inputs=(text,)),
        version("mixed.table", 1, inputs=(table,)),
        version("tokens", 1, inputs=(text,)),
    ]
    parents = [VersionName("mixed.text", 1), VersionName("mixed.table", 1)]
    versions += [version(name, 1, *parents) for name in ("mixture", "other")]
    placed = place_boxes(build_graph(store_of(*versions)))
    lowest_bottom = 0.0
    for box in sorted(placed, key=lambda box: box.y):
        assert box.y - lowest_bottom < 50
        lowest_bottom = max(lowest_bottom, box.y + box.height)


def test_a_chain_is_a_level_line() -> None:
    chain = [version("d0", 1)]
    chain += [version(f"d{n}", 1, VersionName(f"d{n - 1}", 1)) for n in range(1, 12)]
    placed = place_boxes(build_graph(store_of(*chain)))
    assert {round(box.y) for box in placed} == {0}
    assert len({box.x for box in placed}) == 13


def test_lineage_longer_than_pythons_stack_is_drawn() -> None:
    chain = [version("d0", 1)]
    chain += [version(f"d{n}", 1, VersionName(f"d{n - 1}", 1)) for n in range(1, 2000)]
    assert max(lines_of(build_graph(store_of(*chain))).values()) == 2000


def test_two_hundred_versions_make_a_graph_of_a_few_screens() -> None:
    versions: list[VersionSummary] = []
    for number in range(1, 26):
        origins = [
            VersionName(dataset, number) for dataset in ("code", "web", "books", "math")
        ]
        versions += [version(origin.dataset, number) for origin in origins]
        versions += [
            version(f"{name}-mix", number, *origins) for name in ("a", "b", "c", "d")
        ]
    assert len(versions) == 200
    graph = build_graph(store_of(*versions))
    placed = place_boxes(graph)
    assert sum(len(box.box.lines) for box in placed) < 100
    assert max(box.y + box.height for box in placed) < 3000


def test_links_of_the_graph_are_pages() -> None:
    graph = build_graph(store_of(version("code", 1), version("index.html", 1)))
    links = {line.link for box in graph.boxes for line in box.lines if line.link}
    assert links == {
        version_page(VersionName("code", 1)),
        "datasets/index.html/v1.html",
    }
