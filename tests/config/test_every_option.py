"""No option is ignored in silence: each acts, is refused, or says in its description
whom it concerns.

Every key of a dataset, and of the section `source`, is set on every kind of source, on
every road: a source on its own, the row-by-row API, and a build. What comes out must
differ from what comes out without the key, or be an error of ours. The tables must be
total: a new key without an entry fails.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from pydantic import ValidationError

import tokenlake as tl
from tests.lazily import lazily
from tests.servers.hub import hub
from tests.tokenizers.tokenizer_samples import byte_level
from tokenlake import DatasetConfig, load_config
from tokenlake.config import UNSUPPORTED_OPTIONS, first_steps, json_schema
from tokenlake.config.resolve import foreseen, resolve
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.sources import hub_client

plans = lazily("tokenlake.etl.export.plan")

ROWS: Final = [
    {
        "text": f"some words <|endoftext|> {number}",
        "body": f"another text {number}; and more",
        "lang": "en" if number % 2 else "de",
        "prompt": "q?",
        "answer": "a",
    }
    for number in range(6)
]
KINDS: Final = ("jsonl", "json", "parquet", "arrow", "csv", "tsv", "txt", "hf")
FAILING: Final = "CAST(text AS INTEGER) = 1"
"""A predicate that makes every record a bad one."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a key is set.

    Attributes:
        value: another one than the default; {folder} in it is the test's own folder.
        beside: keys that must be set, too, before it can do anything.
        in_rows: the same, in the row-by-row API.
        told: road to what a description says of it there, that of the key or of the
            road: it does nothing there.
        told_kinds: road to the kinds of sources that `told` is about; all where the
            road is missing.
    """

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])
    in_rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    told: Mapping[str, str] = field(default_factory=dict[str, str])
    told_kinds: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )

    def is_told(self, road: str, kind: str) -> bool:
        """Whether the option does nothing on a road, by its description."""
        return road in self.told and kind in self.told_kinds.get(road, KINDS)


def shouted(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "text": row["text"].upper()}


SHORT: Final = {"tokenizer": {"name_or_path": "{tokenizer}", "max_length": 4}}
SAVED: Final = "A build writes it after the commit"
NO_TOKENS: Final = "of the tokenizer do not affect a source of rows"

DATASET: Final[dict[str, Option]] = {
    "data_files": Option(value="{folder}/nothing.jsonl"),
    "dataset": Option(value="stored"),
    "retokenize": Option(value=True),
    "name": Option(
        value="other",
        told={"source": "Name of the source", "rows": "Name of the source"},
    ),
    "type": Option(value="arrow"),
    "split": Option(value="nonsense"),
    "dataset_split_name": Option(value="nonsense"),
    "subset": Option(value="nonsense"),
    "num_rows": Option(value=1),
    "where": Option(value="text like '%1%'"),
    "storage_options": Option(value={"endpoint": "http://127.0.0.1:9"}),
    "tokenizer": Option(value="{folder}/none", told={"source": NO_TOKENS}),
    "tokenizer_kwargs": Option(
        value={"model_max_length": 3}, told={"source": NO_TOKENS}
    ),
    "special_tokens_in_text": Option(value="encode"),
    "cache_path": Option(value="{folder}/cache"),
    "cache_enabled": Option(
        value=False,
        in_rows={"cache_path": "{folder}/cache"},
        told={"build": "equal units of older versions"},
    ),
    "save_path": Option(value="{folder}/out", told={"rows": SAVED}),
    "save_format": Option(
        value="jsonl",
        beside={"save_path": "{folder}/out"},
        told={"rows": "Format at `save_path`"},
    ),
    "content_field": Option(
        value="body",
        told=dict.fromkeys(("source", "rows"), "with the text in `content_field`"),
        told_kinds={
            "source": tuple(kind for kind in KINDS if kind != "txt"),
            "rows": ("txt",),
        },
    ),
    "delimiter": Option(value=";"),
    "text_mode": Option(
        value="lines",
        told=dict.fromkeys(
            ("source", "rows"), "lines if rows are read without a build"
        ),
        told_kinds=dict.fromkeys(("source", "rows"), ("txt",)),
    ),
    "additional_fields": Option(value=["text"]),
    "format_callback": Option(value=f"{__name__}:shouted"),
    "format_fields": Option(value={"text": "renamed"}),
    "transforms": Option(value=[{"drop": ["text"]}]),
    "chat": Option(value={}),
    "prompt": Option(value={"template": "{prompt}{answer}", "label_column": "answer"}),
    "preference": Option(value={"method": "dpo"}),
    "fim": Option(value={"rate": 1.0, "tokens": ["some", "words", "and"]}),
    "tokens": Option(value={"field": "ids"}),
    "long_documents": Option(value="drop", beside=SHORT),
    "truncation_strategy": Option(value="word", beside=SHORT),
    "truncation_side": Option(value="left", beside=SHORT),
    "shard_column": Option(
        value="lang",
        beside={"save_path": "{folder}/out", "additional_fields": ["lang"]},
    ),
    "field_types": Option(
        value={"text": "string"}, beside={"additional_fields": ["text"]}
    ),
    "num_shards": Option(value=2, told={"rows": "files for each split of this source"}),
    "on_bad_record": Option(value="quarantine", beside={"where": FAILING}),
    "max_bad_fraction": Option(value=0.5, beside={"on_bad_record": "quarantine"}),
    "splits": Option(value={"train": 0.5, "test": 0.5}),
    "eval": Option(value=2),
    "exclude": Option(value="{folder}/nothing.parquet"),
}

SECTION: Final[dict[str, Option]] = {
    "unit_size": Option(value=10, told={"rows": "of a build"}),
    "max_record_bytes": Option(value=10),
    "max_expansion": Option(
        value=2.0,
        told={
            "rows": "Largest compression ratio",
            "build": "Largest compression ratio",
        },
    ),
    "on_bad_record": Option(value="quarantine", beside={"where": FAILING}),
    "max_bad_fraction": Option(value=0.5, beside={"on_bad_record": "quarantine"}),
    "splits": Option(value={"train": 0.5, "test": 0.5}),
    "hash_threads": Option(
        value=3,
        told={
            "rows": "does not change the result",
            "build": "does not change the result",
        },
    ),
    "streaming": Option(
        value=False, told={"rows": "files of the Hub", "build": "Not used by a build"}
    ),
    "cloud_max_retries": Option(value=2),
    "cloud_retry_delay": Option(value=2.0),
    "dask_storage_options": Option(value={"a": 1}),
}


@dataclass(frozen=True)
class Surroundings:
    """Files of every kind, a tokenizer, and a folder of a test's own."""

    data: Path
    tokenizer: Path
    folder: Path

    def filled(self, value: Any) -> Any:
        """Return a value with the folders filled in."""
        if isinstance(value, str):
            return value.replace("{folder}", str(self.folder)).replace(
                "{tokenizer}", str(self.tokenizer)
            )
        if isinstance(value, dict):
            return {key: self.filled(item) for key, item in value.items()}
        return value

    def dataset(self, kind: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return a dataset of a kind, with keys in addition."""
        files = (
            {"data_files": "org/data", "type": "hf"}
            if kind == "hf"
            else {"data_files": f"{self.data}/{kind}"}
        )
        return {"name": "source", **files, "tokenizer": str(self.tokenizer), **keys}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind, with two files each."""
    root = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        (root / kind).mkdir()
        for half, rows in (("a", ROWS[:3]), ("b", ROWS[3:])):
            write(root / kind / f"{half}.{kind}", kind, rows)
    return root


def write(path: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as a file of a kind."""
    if kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, list(rows[0]), delimiter="\t" if kind == "tsv" else ","
            )
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "txt":
        path.write_text("".join(row["text"] + "\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    for name, content in byte_level().files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _a_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Hub on loopback with a dataset of two splits."""
    content = {
        f"{split}.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()
        for split, rows in (("train", ROWS), ("test", ROWS[:2]))
    }
    with pytest.MonkeyPatch.context() as patch, hub() as running:
        for name in (
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
        ):
            patch.delenv(name, raising=False)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(
            constants,
            "HF_TOKEN_PATH",
            str(tmp_path_factory.mktemp("home") / "no-token"),
        )
        patch.setattr(hub_client, "_FIRST_WAIT", 0.001)
        patch.setenv("HF_ENDPOINT", running.endpoint)
        running.repo("org/data", content)
        yield


def rows_of_source(
    dataset: Mapping[str, Any], _section: Mapping[str, Any], _folder: Path
) -> Any:
    return list(tl.create_source(dataset))


def rows_of_pipeline(
    dataset: Mapping[str, Any], section: Mapping[str, Any], folder: Path
) -> Any:
    pipeline = tl.Pipeline.from_config({"datasets": [dataset], "source": section})
    rows = [
        {name: np.asarray(value).tolist() for name, value in row.items()}
        for row in pipeline.source().tokenize().build()
    ]
    cache = folder / "cache"
    return rows, sorted(
        path.name for path in cache.rglob("*")
    ) if cache.exists() else []


def planned(
    dataset: Mapping[str, Any], section: Mapping[str, Any], folder: Path
) -> Any:
    config = load_config(
        {
            "name": "set",
            "datasets": [dataset],
            "source": section,
            "save": {"output_dir": str(folder / "store")},
        }
    )
    plans.check_exports(config)
    plan = tl.plan(config)
    return plan.fingerprint, dict(plan.bad_budgets), repr(plans.exports_of(config))


ROADS: Final[dict[str, Callable[[Mapping[str, Any], Mapping[str, Any], Path], Any]]] = {
    "source": rows_of_source,
    "rows": rows_of_pipeline,
    "build": planned,
}


_KNOWN: Final[dict[str, tuple[str, Any]]] = {}
"""Outcomes by what was asked: without the key most tests ask the same."""


def outcome(
    road: str, dataset: Mapping[str, Any], section: Mapping[str, Any], folder: Path
) -> tuple[str, Any]:
    """Return what comes out, or the error of ours that comes; any other error fails
    the test.
    """
    asked = repr((road, dataset, section, folder))
    if asked not in _KNOWN:
        try:
            _KNOWN[asked] = "result", ROADS[road](dataset, section, folder)
        except TokenlakeError as error:
            _KNOWN[asked] = "refused", type(error)
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)
    return _KNOWN[asked]


def test_the_tables_are_total() -> None:
    roads = " ".join((tl.create_source.__doc__ or "").split())
    sections = json_schema()["$defs"]
    for model, table in (("DatasetConfig", DATASET), ("SourceStageConfig", SECTION)):
        options = sections[model]["properties"]
        assert table.keys() == options.keys()
        for name, option in table.items():
            known = f"{' '.join(options[name]['description'].split())} {roads}"
            for told in option.told.values():
                assert told in known, (name, told)


@pytest.mark.filterwarnings("ignore:.*left out, more than were kept:RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", DATASET)
def test_a_key_of_a_dataset_acts_or_is_refused(
    data: Path, tokenizer: Path, kind: str, key: str
) -> None:
    folder = data / "own"
    here, option = Surroundings(data, tokenizer, folder), DATASET[key]
    for road in ROADS:
        beside = {**option.beside, **(option.in_rows if road == "rows" else {})}
        value = "jsonl" if (key, kind) == ("type", "arrow") else option.value
        without = here.dataset(kind, here.filled(beside))
        changed = {**without, key: here.filled(value)}
        if changed.get("dataset") is not None:
            del changed["data_files"]
        before = outcome(road, without, {}, folder)
        after = outcome(road, changed, {}, folder)
        is_ignored = after == before and after[0] == "result"
        assert is_ignored == option.is_told(road, kind), f"{road}: {before} -> {after}"


@pytest.mark.parametrize("key", SECTION)
def test_a_key_of_the_section_source_acts_or_is_refused(
    data: Path, tokenizer: Path, key: str
) -> None:
    folder = data / "own"
    here, option = Surroundings(data, tokenizer, folder), SECTION[key]
    own = {
        name: value
        for name, value in option.beside.items()
        if name in DATASET and name not in SECTION
    }
    beside = {name: value for name, value in option.beside.items() if name not in own}
    for road in ("rows", "build"):
        dataset = here.dataset("jsonl", own)
        before = outcome(road, dataset, beside, folder)
        after = outcome(road, dataset, {**beside, key: option.value}, folder)
        is_ignored = after == before and after[0] == "result"
        assert is_ignored == option.is_told(road, "jsonl"), (
            f"{road}: {before} -> {after}"
        )


@pytest.mark.parametrize("key", DATASET)
def test_beside_a_stored_dataset_a_key_is_refused_by_name(key: str) -> None:
    acting = {"name", "split", "dataset", "retokenize"}
    value = DATASET[key].value
    given = {"dataset": "stored", key: value}
    if key in acting:
        assert getattr(DatasetConfig.model_validate(given), key) == value
        return
    with pytest.raises(ValidationError, match=rf"{key}"):
        DatasetConfig.model_validate(given)
    for road in ("source", "rows"):  # these read files alone
        assert (
            outcome(road, {"dataset": "stored", "tokenizer": "x"}, {}, Path("none"))[0]
            == "refused"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("key", "fitting"),
    [
        ("delimiter", {"csv", "tsv"}),
        ("text_mode", {"txt"}),
        ("storage_options", {"hf"}),
    ],
)
def test_an_option_without_a_use_is_refused_on_every_road(
    data: Path, tokenizer: Path, kind: str, key: str, fitting: set[str]
) -> None:
    """In a build these are a part of the identity, so that the table sees a
    difference wherever they are set.
    """
    here = Surroundings(data, tokenizer, data / "own")
    value = {"token": False} if key == "storage_options" else DATASET[key].value
    for road in ROADS:
        dataset = here.dataset(kind, {key: value, "content_field": "text"})
        if kind in fitting:
            run_or_bad_text(road, dataset, here.folder)
        else:
            with pytest.raises(ConfigError, match=rf"{key}: .*leave (it|them) out"):
                ROADS[road](dataset, {}, here.folder)


def run_or_bad_text(road: str, dataset: Mapping[str, Any], folder: Path) -> None:
    """Run a road; where another delimiter joins the columns, no column is the text."""
    try:
        ROADS[road](dataset, {}, folder)
    except TokenlakeError as error:
        assert "leave it out" not in str(error)


SPEED: Final[dict[str, dict[str, Any]]] = {
    "tokenize": {"batch_size": 500, "num_workers": 2}
}
"""Options that only concern speed and that a build does not use: (section, {key:
another value}).
"""


@pytest.mark.parametrize("mixed", [False, True])
def test_an_option_of_speed_is_accepted_with_one_note_and_changes_nothing(
    data: Path, tokenizer: Path, mixed: bool
) -> None:
    here = Surroundings(data, tokenizer, data / "own")
    config: dict[str, Any] = {
        "name": "set",
        "datasets": [here.dataset("jsonl", {"name": name}) for name in ("a", "b")],
        "save": {"output_dir": str(data / "own" / "store")},
        "mix": {"total_rows": 4, "lanes": 1} if mixed else {},
        "pack": {"enabled": True, "seq_length": 8},
    }
    assert {f"{section}.{key}" for section, keys in SPEED.items() for key in keys} == {
        refusal.key for refusal in UNSUPPORTED_OPTIONS if refusal.is_speed
    }
    asked = load_config({**config, **SPEED})
    builds = [resolve(step) for step in first_steps(asked).values()]
    builds.append(foreseen(asked))
    usual = load_config(config)
    expected = [resolve(step) for step in first_steps(usual).values()]
    expected.append(foreseen(usual))
    notes = [note for build in builds for note in build.notes]
    assert [replace(build, notes=()) for build in builds] == expected
    assert [note.partition(" is not used by a build")[0] for note in notes] == [
        f"{section}.{key}: {value}"
        for section, keys in SPEED.items()
        for key, value in keys.items()
    ]


def test_the_plan_and_the_result_of_a_build_say_which_options_it_does_not_use(
    data: Path, tokenizer: Path
) -> None:
    here = Surroundings(data, tokenizer, data / "own")
    config = {
        "name": "speed",
        "datasets": [here.dataset("jsonl", {})],
        "save": {"output_dir": str(data / "own" / "store")},
        **SPEED,
    }
    plan = tl.plan(config)
    assert plan.fingerprint == tl.plan({**config, "tokenize": {}}).fingerprint
    result = tl.build_dataset(config, workers=1)
    for notes in (plan.notes, result.notes, tl.build_dataset(config, workers=1).notes):
        assert [note.partition(":")[0] for note in notes] == [
            "tokenize.batch_size",
            "tokenize.num_workers",
        ]
