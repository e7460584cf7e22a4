"""Steps of a configuration in whole builds: rows change, are left out, set aside,
multiplied, and counted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.builds import Config, Lender, config_of
from tests.etl.test_build import rows, tree
from tests.tokenizer_reference import ReferenceTokenizer
from tokenlake import BuildResult, load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl import build_dataset, make_plan
from tokenlake.etl.unit import Recipe

ROWS = [
    {
        "title": "one",
        "body": "first",
        "lang": "en",
        "n": 1,
        "meta": {"tags": ["x", "y"]},
    },
    {"title": "two", "body": "", "lang": "en", "n": 2, "meta": {"tags": []}},
    {"title": "three", "body": "third", "lang": "de", "n": 3, "meta": None},
    {"title": "four", "body": "fourth", "lang": "en", "n": 4, "meta": {"tags": None}},
    {"title": "five", "body": None, "lang": "en", "n": 5, "meta": {"tags": ["z"]}},
]
STEPS = """
- filter_non_empty: [body]
- where: "lang = 'en'"
- extract: {source_path: "meta.tags[0]", target_field: tag, default: none}
- map: {field: title, function: builtins:str.upper}
- add: {end: "."}
- combine: {fields: [title, body, tag, end], output_field: text, separator: " ", drop_sources: true}
- rename: {lang: language}
- filter_by: {field: language, equals: en}
- select: [text, n]
- drop: n
"""


def write(
    folder: Path, form: str, records: list[dict[str, Any]], name: str = "a"
) -> str:
    folder.mkdir(exist_ok=True)
    if form == "jsonl":
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
    elif form == "json":
        (folder / f"{name}.json").write_text(json.dumps(records))
    elif form == "csv":
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "n"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(records)
    else:
        records = [
            {key: value for key, value in record.items() if value != 5}
            for record in records
        ]
        pq.write_table(pa.Table.from_pylist(records), folder / f"{name}.parquet")
    return str(folder)


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Config:
    found = config_of(tmp_path, tmp_path / "in", tokenizer_dir)
    return {**found, "source": {"on_bad_record": "quarantine", "max_bad_fraction": 1.0}}


def texts(result: BuildResult, tokenizer_dir: Path) -> list[str]:
    tokenizer = ReferenceTokenizer.of_folder(tokenizer_dir)
    return [
        tokenizer.decode(ids, skip_special_tokens=True)
        for ids in rows(result)["input_ids"].to_pylist()
    ]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_steps_of_a_file_change_rows(
    form: str, config: Config, tmp_path: Path, tokenizer_dir: Path
) -> None:
    write(tmp_path / "in", form, ROWS)
    config["datasets"][0]["transforms"] = yaml.safe_load(STEPS)
    result = build_dataset(config, workers=1)
    assert texts(result, tokenizer_dir) == ["ONE first x .", "FOUR fourth none ."]
    account = result.manifest.account
    assert (account.rows_read, account.kept) == (5, 2)
    assert account.filtered == {"filter_non_empty": 2, "where": 1}


def test_of_parquet_only_what_steps_look_at_is_read(
    config: Config, tmp_path: Path
) -> None:
    write(tmp_path / "in", "parquet", [{**row, "large": "x" * 1000} for row in ROWS])
    config["datasets"][0]["transforms"] = yaml.safe_load(STEPS)
    plan = make_plan(resolve(load_config(config)))
    (source,) = plan.build.sources
    recipe: Any = Recipe(source, plan.tokenizers["s"].files)
    looked_at = ["body", "lang", "language", "meta", "meta.tags[0]", "n", "title"]
    assert sorted(recipe._columns) == looked_at
    (prepared,) = recipe.read(plan.units[0].ranges[0])
    assert len(prepared.documents) == 2


MIXED: list[dict[str, Any]] = [
    {"text": f"t{n}", "lang": "en", "n": str(n)} for n in range(40)
]
MIXED[7] |= {"lang": 5, "n": "x"}
MIXED[20] |= {"lang": None, "n": None}


@pytest.mark.parametrize(
    ("form", "step", "where", "told"),
    [
        (
            "jsonl",
            False,
            "lang = 'en'",
            r"a\.jsonl:8: where_failed at byte offset \d+: .*lang int64",
        ),
        (
            "jsonl",
            True,
            "lang = 'en'",
            r"a\.jsonl:8: where_failed at byte offset \d+: .*lang int64",
        ),
        ("json", True, "lang = 'en'", r"a\.json: where_failed at row 7: .*lang int64"),
        (
            "csv",
            False,
            "nullif(n, '')::int >= 0",
            r"a\.csv:9: where_failed at row 7: .*convert string 'x'",
        ),
        (
            "parquet",
            False,
            "n::int >= 0",
            r"a\.parquet: where_failed at row 7: .*convert string 'x'",
        ),
        (
            "parquet",
            True,
            "n::int >= 0",
            r"a\.parquet: where_failed at row 7: .*convert string 'x'",
        ),
    ],
)
def test_an_odd_value_changes_the_verdict_on_its_record_alone(
    form: str,
    step: bool,
    where: str,
    told: str,
    config: Config,
    tmp_path: Path,
    tokenizer_dir: Path,
) -> None:
    """In whole builds, whichever the format, and whether the predicate is the
    source's or a step's.
    """
    write(tmp_path / "in", form, MIXED)
    config["datasets"][0] |= (
        {"transforms": [{"where": where}]} if step else {"where": where}
    )
    result = build_dataset(config, workers=1)
    expected = [row["text"] for at, row in enumerate(MIXED) if at not in (7, 20)]
    assert texts(result, tokenizer_dir) == expected
    account = result.manifest.account
    assert account.quarantined == {"where_failed": 1}
    assert account.filtered == {"where": 1}
    config["source"] = {"on_bad_record": "fail"}
    with pytest.raises(BadRecordError, match=told):
        build_dataset(config, workers=1)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_field_that_is_not_there_is_a_bad_record_with_what_is(
    form: str, config: Config, tmp_path: Path
) -> None:
    write(tmp_path / "in", form, ROWS[:2])
    config["source"]["on_bad_record"] = "fail"
    config["datasets"][0]["transforms"] = [{"rename": {"boddy": "text"}}]
    with pytest.raises(BadRecordError, match=r"missing_field at .* no field 'boddy'"):
        build_dataset(config, workers=1)
    config["datasets"][0]["transforms"] = [
        {"rename": {"title": "body"}},
        {"rename": {"body": "text"}},
    ]
    with pytest.raises(BadRecordError, match="field_collision"):
        build_dataset(config, workers=1)


CALLBACKS = '''
    def prepare(row):
        """Every way a function of a row can end."""
        kind = row["kind"]
        if kind == "drop":
            return None
        if kind == "raise":
            raise ValueError(f"cannot use {row['body']!r}")
        if kind == "many":
            return [{"text": f"{row['body']} {number}"} for number in range(3)]
        if kind == "none":
            return []
        row["text"] = row.pop("body")
        return row

    def wrong(row):
        return 7

    def louder(value):
        return value.upper()

    def short(value):
        return len(value) < 6

    def kept(row):
        return row["kind"] != "drop"

    def glued(values):
        return "+".join(values)

    class Cleaner:
        @staticmethod
        def clean(row):
            return {"text": row["body"].strip()}
'''
KINDS = [
    {"kind": kind, "body": f"b{n}"}
    for n, kind in enumerate(["keep", "drop", "raise", "many", "none", "keep"])
]


@pytest.fixture(scope="module")
def callbacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A module of a user's own, in a folder that this process, and the workers of
    these tests, import from.
    """
    module = tmp_path_factory.mktemp("code") / "lake_callbacks.py"
    module.write_text(dedent(CALLBACKS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(module.parent))
        with Lender.here():
            yield module


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_function_drops_multiplies_and_refuses_rows(
    form: str, config: Config, tmp_path: Path, tokenizer_dir: Path, callbacks: Path
) -> None:
    write(tmp_path / "in", form, KINDS)
    config["datasets"][0]["format_callback"] = f"{callbacks.stem}:prepare"
    result = build_dataset(config, workers=1)
    assert texts(result, tokenizer_dir) == ["b0", "b3 0", "b3 1", "b3 2", "b5"]
    account = result.manifest.account
    assert (account.rows_read, account.kept, account.expanded, account.documents) == (
        6,
        3,
        2,
        5,
    )
    assert account.filtered == {"format_callback": 2}
    assert account.quarantined == {"callable_raised": 1}
    (path,) = (Path(result.path) / "quarantine").glob("*.parquet")
    (bad,) = pq.read_table(path).to_pylist()
    assert (
        bad["detail"] == f"{callbacks.stem}:prepare raised ValueError: cannot use 'b2'"
    )
    assert json.loads(bad["raw"]) == KINDS[2]


@pytest.mark.parametrize(
    ("function", "error", "told"),
    [
        (
            "prepare",
            BadRecordError,
            r"a\.jsonl:3: callable_raised .* raised ValueError: cannot use 'b2'",
        ),
        (
            "wrong",
            ConfigError,
            r":wrong returned a int, must be a dict, None to leave the row out",
        ),
    ],
)
def test_what_a_function_does_wrong_ends_the_build_with_its_name(
    function: str,
    error: type[Exception],
    told: str,
    config: Config,
    tmp_path: Path,
    callbacks: Path,
) -> None:
    write(tmp_path / "in", "jsonl", KINDS)
    config["source"]["on_bad_record"] = "fail"
    config["datasets"][0]["format_callback"] = f"{callbacks.stem}:{function}"
    with pytest.raises(error, match=told):
        build_dataset(config, workers=1)


def test_the_order_is_callback_renames_transforms(
    config: Config, tmp_path: Path, tokenizer_dir: Path, callbacks: Path
) -> None:
    write(tmp_path / "in", "jsonl", [{"body": "  many words "}, {"body": "x"}])
    config["datasets"][0] |= {
        "format_callback": f"{callbacks.stem}:Cleaner.clean",
        "format_fields": {"text": "t"},
        "transforms": [
            {
                "map": {
                    "field": "t",
                    "function": f"{callbacks.stem}:louder",
                    "output_field": "loud",
                }
            },
            {
                "combine": {
                    "fields": ["t", "loud"],
                    "output_field": "text",
                    "combiner": f"{callbacks.stem}:glued",
                }
            },
            {"filter_by": {"field": "text", "function": f"{callbacks.stem}:short"}},
        ],
    }
    result = build_dataset(config, workers=1)
    assert texts(result, tokenizer_dir) == ["x+X"]
    assert result.manifest.account.filtered == {"filter_by_field": 1}


def test_the_number_of_workers_changes_no_byte(
    config: Config, tmp_path: Path, callbacks: Path
) -> None:
    for name in "abc":
        write(tmp_path / "in", "jsonl", KINDS * 20, name)
    config["source"]["unit_size"] = 2500
    config["datasets"][0] |= {
        "transforms": [
            {"filter": f"{callbacks.stem}:kept"},
            {"apply": f"{callbacks.stem}:prepare"},
        ],
    }
    one = build_dataset(config, workers=1)
    config["save"] = {"output_dir": str(tmp_path / "other")}
    two = build_dataset(config, workers=2)
    assert one.manifest.account.filtered == {"filter_transform": 60, "apply": 60}
    assert tree(Path(one.path)) == tree(Path(two.path))


def test_edited_code_is_another_build_and_untouched_code_the_same(
    config: Config, tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = tmp_path / "edited_callbacks.py"
    callbacks.write_text(dedent(CALLBACKS))
    monkeypatch.syspath_prepend(
        str(tmp_path)
    )  # workers that are started here, and keep nothing of other builds
    write(tmp_path / "in", "jsonl", [{"body": "b"}])
    config["datasets"][0]["transforms"] = [
        {
            "map": {
                "field": "body",
                "function": f"{callbacks.stem}:louder",
                "output_field": "text",
            }
        }
    ]
    first = build_dataset(config, workers=1)
    assert build_dataset(config, workers=1).status == "exists"
    callbacks.write_text(callbacks.read_text().replace("value.upper()", "value * 3"))
    second = build_dataset(config, workers=1)
    assert (first.version, second.version, second.units_reused) == (1, 2, 0)
    assert (texts(first, tokenizer_dir), texts(second, tokenizer_dir)) == (
        ["B"],
        ["bbb"],
    )


def test_a_wrong_step_is_an_error_before_any_work(
    config: Config, tmp_path: Path
) -> None:
    write(tmp_path / "in", "jsonl", ROWS)
    for step, message in [
        (
            {"where": "lang ="},
            r"datasets\.s: transforms\.0\.where: where: 'lang =' cannot be used",
        ),
        (
            {"apply": "no_such_module_here:f"},
            r"transforms|'no_such_module_here:f' cannot be imported",
        ),
        (
            {"filter": "json:no_such"},
            "'json:no_such' does not exist: json has no no_such",
        ),
        ({"filter": "json:__version__"}, "is a str, must be a function"),
        (
            {"extract": {"source_path": "a..b", "target_field": "c"}},
            "got the path 'a..b'",
        ),
    ]:
        config["datasets"][0]["transforms"] = [step]
        with pytest.raises(ConfigError, match=message):
            build_dataset(config, workers=1)
    assert not (tmp_path / "store").exists()


def test_without_steps_the_identity_is_what_it_was(
    config: Config, tmp_path: Path
) -> None:
    write(tmp_path / "in", "jsonl", [{"text": "x"}])
    before = make_plan(resolve(load_config(config))).fingerprint
    config["datasets"][0] |= {
        "transforms": [],
        "format_fields": {},
        "format_callback": None,
    }
    assert make_plan(resolve(load_config(config))).fingerprint == before
