"""Builds of preferences: every method, from files to verified rows, and every
command that asks what they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builds import config_of as settings
from tests.text import preference_support as support
from tests.text.preference_support import Reference
from tests.text.support import Row, table
from tests.tokenizers.tokenizer_samples import save
from tokenlake import BuildResult, Catalog, PreferenceRows, load_config, verify
from tokenlake import sql as query
from tokenlake.cli.app import main
from tokenlake.config.resolve import resolve
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl import BuildSession, build_dataset, make_plan
from tokenlake.etl.integrity import RowCheck, RowRules
from tokenlake.etl.plan import estimate, total
from tokenlake.etl.tokenizers import TokenizerFiles
from tokenlake.runtime import LogicalHasher, open_writer
from tokenlake.runtime.store import open_store

Build = Callable[[Row], BuildResult]
METHODS = ("dpo", "orpo", "cpo", "reward", "kto", "bco", "grpo")


def pairs(first: int, last: int) -> list[Row]:
    return [
        {
            "prompt": f"Question {i}: what is {i} and {i}? \u00e9\u65e5",
            "chosen": f" It is {2 * i}." + " Sure." * (i % 4),
            "rejected": f" It is {2 * i + 1}, I think.",
        }
        for i in range(first, last)
    ]


def conversation(row: Row) -> Row:
    """The same pair as two conversations that begin alike."""
    return {
        name: [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": row[name].strip()},
        ]
        for name in ("chosen", "rejected")
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two JSONL files of pairs, each a unit of its own, and tokenizers beside them."""
    (tmp_path / "in").mkdir()
    for name, rows in (("a", pairs(0, 30)), ("b", pairs(30, 50))):
        write(tmp_path / "in" / f"{name}.jsonl", rows)
    for name, files in (("llama", support.llama()), ("chatml", support.chatml())):
        save(files, tmp_path / name)
    return tmp_path


@pytest.fixture
def build() -> Build:
    """Builds a dataset in the worker that all builds share."""
    return partial(build_dataset, workers=1)


def write(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def config_of(
    folder: Path, method: str, tokenizer: str = "llama", **changes: Any
) -> Row:
    changes["preference"] = {
        "method": method,
        "trainer": changes.pop("trainer", "easydel"),
    }
    return settings(folder, folder / "in", folder / tokenizer, **changes) | {
        "source": {"unit_size": 2000}
    }


def rows_of(result: BuildResult) -> list[Row]:
    return table(result).drop_columns(["file", "position"]).to_pylist()


@pytest.mark.parametrize("method", METHODS)
def test_every_row_comes_back_id_for_id(
    folder: Path, build: Build, method: Any
) -> None:
    result = build(config_of(folder, method))
    one_by_one = PreferenceRows(method, support.llama())
    assert rows_of(result) == [
        made for row in pairs(0, 50) for made in one_by_one.expand(row)
    ]
    account, judged = result.manifest.account, method in ("kto", "bco")
    assert (result.manifest.kind, result.manifest.preference) == (
        "preference",
        (method, "easydel"),
    )
    assert (account.rows_read, account.kept, account.expanded) == (
        50,
        50,
        50 if judged else 0,
    )
    assert (account.documents, account.dropped) == (100 if judged else 50, {})
    report = verify(open_store(folder / "store"), "set", 1, deep=True)
    assert report.ok, report.problems
    assert report.rows == account.documents
    assert report.tokens == account.content_packed + account.bos + account.eos


@pytest.mark.parametrize(
    ("method", "tokenizer"),
    [
        ("dpo", "llama"),
        ("dpo", "chatml"),
        ("reward", "chatml"),
        ("kto", "llama"),
        ("grpo", "chatml"),
    ],
)
def test_conversations_come_back_id_for_id(
    folder: Path, build: Build, method: Any, tokenizer: str
) -> None:
    files: TokenizerFiles = getattr(support, tokenizer)()
    rows = [conversation(row) for row in pairs(0, 20)]
    (folder / "in" / "b.jsonl").unlink()
    write(folder / "in" / "a.jsonl", rows)
    result = build(config_of(folder, method, tokenizer))
    one_by_one = PreferenceRows(method, files)
    assert rows_of(result) == [made for row in rows for made in one_by_one.expand(row)]
    # The templates spell BOS and EOS themselves.
    assert (result.manifest.account.bos, result.manifest.account.eos) == (0, 0)


def test_other_fields_are_kept_beside_prompts(folder: Path, build: Build) -> None:
    rows = [{"prompt": f"What is {i}?", "answer": str(i), "n": [i]} for i in range(20)]
    write(folder / "in" / "b.jsonl", rows)
    (folder / "in" / "a.jsonl").unlink()
    config = config_of(folder, "grpo", trainer="trl", additional_fields=["answer", "n"])
    found = rows_of(
        build(config | {"save": {"output_dir": str(folder / "store"), "num_shards": 3}})
    )
    wanted = ("prompt", "answer", "n")
    assert sorted(
        ([row[name] for name in wanted] for row in found), key=lambda row: row[2]
    ) == [[row[name] for name in wanted] for row in rows]
    manifest = Catalog(open_store(folder / "store")).manifest("set", 1)
    assert [entry.rows for entry in manifest.files] == [7, 7, 6]
    assert verify(open_store(folder / "store"), "set", 1, deep=True).ok
    with pytest.raises(
        ConfigError, match="'prompt' is a column that every row has already"
    ):
        BuildSession.open(
            config_of(folder, "grpo", trainer="trl", additional_fields=["prompt"])
        )


def test_a_second_build_has_nothing_to_do_and_another_trainer_has(
    folder: Path, build: Build
) -> None:
    assert build(config_of(folder, "dpo")).status == "built"
    assert build(config_of(folder, "dpo")).status == "exists"
    other = build(config_of(folder, "dpo", trainer="trl"))
    assert (other.status, other.version) == ("built", 2)
    assert set(rows_of(other)[0]) == {"prompt_ids", "chosen_ids", "rejected_ids"}


# What does not get through is accounted


def test_bad_rows_are_set_aside_by_reason(folder: Path, build: Build) -> None:
    good = pairs(0, 1)[0]
    bad = [
        {**good, "rejected": good["chosen"]},
        {**good, "chosen": ""},
        {"prompt": "a"},
        {**good, "prompt": "a</s>b"},
        {"chosen": "x", "rejected": "y"},
    ]
    write(folder / "in" / "b.jsonl", [*bad, good])
    with pytest.raises(BadRecordError, match=r"b\.jsonl:1: equal_answers"):
        build_dataset(config_of(folder, "dpo"), workers=1)
    result = build(
        config_of(folder, "dpo", on_bad_record="quarantine", max_bad_fraction=1.0)
    )
    reasons = (
        "equal_answers",
        "empty_answer",
        "missing_field",
        "special_token_in_text",
        "no_prompt",
    )
    account = result.manifest.account
    assert account.quarantined == dict.fromkeys(reasons, 1)
    assert (account.rows_read, account.kept) == (36, 31)
    found = query(
        folder / "store", 'select reason, raw from "set/quarantine" order by position'
    ).to_pylist()
    assert [(row["reason"], json.loads(row["raw"])) for row in found] == list(
        zip(reasons, bad, strict=True)
    )


def test_a_bad_pair_is_one_bad_row_though_it_would_be_two_documents(
    folder: Path, build: Build
) -> None:
    write(folder / "in" / "b.jsonl", [{"prompt": "a", "chosen": "b", "rejected": " "}])
    result = build(
        config_of(folder, "kto", on_bad_record="quarantine", max_bad_fraction=1.0)
    )
    account = result.manifest.account
    assert (account.rows_read, account.kept, account.expanded) == (31, 30, 30)
    assert account.quarantined == {"empty_answer": 1}


def test_borders_that_moved_are_counted(folder: Path, build: Build) -> None:
    rows = [{"prompt": "Answer: ", "chosen": "yes", "rejected": "no"}, *pairs(0, 3)]
    write(folder / "in" / "b.jsonl", rows)
    (folder / "in" / "a.jsonl").unlink()
    result = build(config_of(folder, "dpo"))
    assert result.manifest.account.normalized == {"prompt_border_moved": 1}


@pytest.mark.parametrize("policy", ["keep", "truncate", "drop"])
def test_lengths_are_what_was_asked_for_and_accounted(
    folder: Path, build: Build, policy: str
) -> None:
    reference = Reference(support.llama())
    made = [reference.parts(*row.values()) for row in pairs(0, 50)]
    prompts = sorted(len(parts[0]) for parts in made)
    limit = prompts[-1] + 6
    config = config_of(folder, "dpo", trainer="trl", long_documents=policy)
    result = build(config | {"tokenize": {"max_length": limit}})
    rows, account = (
        [list(row.values()) for row in rows_of(result)],
        result.manifest.account,
    )
    fits = [len(parts[0]) + max(map(len, parts[1:])) <= limit for parts in made]
    assert 0 < sum(fits) < len(made)
    if policy == "keep":
        assert rows == made
    elif policy == "drop":
        assert rows == [parts for parts, fit in zip(made, fits, strict=True) if fit]
        assert (
            account.filtered
            == {"too_long": fits.count(False)}
            == {reason: fits.count(False) for reason in account.dropped}
        )
    else:
        cut = [
            [parts[0], *(ids[: limit - len(parts[0])] for ids in parts[1:])]
            for parts in made
        ]
        assert rows == [parts for parts in cut if parts[1] != parts[2]]
        assert account.dropped["truncated"] > 0
    assert (
        sum(len(ids) for parts in rows for ids in parts)
        == account.content_packed + account.bos + account.eos
    )
    whole = sum(len(ids) for parts in made for ids in parts)
    # A BOS and two EOS are not of the text.
    assert account.tokens == whole - 3 * len(made)
    assert verify(open_store(folder / "store"), "set", 1, deep=True).ok


def test_a_prompt_that_leaves_no_room_is_left_out_with_its_answers(
    folder: Path, build: Build
) -> None:
    config = config_of(folder, "kto", long_documents="truncate") | {
        "tokenize": {"max_length": 3}
    }
    write(
        folder / "in" / "b.jsonl",
        [{"prompt": "a", "chosen": "b c d", "rejected": "e f g"}],
    )
    account = build(config).manifest.account
    assert account.filtered == {"prompt_too_long": 30}
    assert (account.kept, account.expanded, account.documents) == (1, 1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pack": {"enabled": True, "seq_length": 32}},
            "pack.enabled: true, but a dataset has a section",
        ),
        (
            {"tokenize": {"long_documents": "split"}},
            "a pair cannot be cut into several",
        ),
    ],
)
def test_what_contradicts_preferences_is_an_error(
    folder: Path, build: Build, changes: Row, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config_of(folder, "dpo") | changes)


def test_all_sources_have_the_same_rows(folder: Path, build: Build) -> None:
    config = config_of(folder, "dpo")
    (first,) = config["datasets"]
    for preference in ({"method": "orpo"}, {"method": "dpo", "trainer": "trl"}, None):
        other = {**first, "name": "t", "preference": preference}
        with pytest.raises(
            ConfigError, match=r"different columns \(s: dpo for easydel, t: "
        ):
            build(config | {"datasets": [first, other]})
    with pytest.raises(
        ConfigError, match=r"datasets\.s\.chat: set beside `preference`"
    ):
        build(config_of(folder, "dpo", chat={}))


# Everything that asks what the rows are


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset of pairs and one of judged answers."""
    root = tmp_path_factory.mktemp("preferences")
    (root / "in").mkdir()
    write(root / "in" / "a.jsonl", pairs(0, 5))
    save(support.llama(), root / "llama")
    for method, trainer in (("dpo", "easydel"), ("kto", "trl")):
        build_dataset(
            config_of(root, method, trainer=trainer) | {"name": method}, workers=1
        )
    return root / "store"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_peek_shows_prompt_and_answers(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = pairs(1, 2)[0]
    shown = json.loads(
        said(
            capsys,
            "peek",
            "dpo",
            "-n",
            "1",
            "--row",
            "1",
            "--json",
            "--store",
            str(store),
        )
    )
    texts = {segment["part"]: segment["text"] for segment in shown[0]["segments"]}
    assert texts == {
        "prompt": f"<s> {row['prompt']}",
        "chosen": f"{row['chosen'].strip()}</s>",
        "rejected": f"{row['rejected'].strip()}</s>",
    }
    text = said(capsys, "peek", "kto", "-n", "2", "--store", str(store))
    assert "labelled good" in text and "labelled bad" in text
    assert "prompt" in text and "completion" in text


def test_show_and_card_say_what_the_rows_are(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(capsys, "show", "dpo", "--store", str(store))
    assert "dpo v1  preference, committed" in shown
    assert "5 for dpo, in the columns of easydel" in shown
    card = (store / "dpo" / "v1" / "README.md").read_text()
    assert "Tokenized preferences for DPO in the columns of EasyDeL's trainers" in card
    for name in rows_of_store(store, "dpo").schema.names:
        assert f"`{name}`" in card
    assert 'path: "data/train-*.parquet"' in card
    assert "preference" in said(capsys, "ls", "--store", str(store))


def rows_of_store(store: Path, name: str) -> Any:
    return pq.read_table(sorted((store / name / "v1" / "data").glob("*.parquet"))[0])


def test_sql_counts_each_part_once(store: Path) -> None:
    for name in ("dpo", "kto"):
        (found,) = query(
            store, f'select sum(length) as n, count(*) as rows from "{name}/documents"'
        ).to_pylist()
        totals = json.loads((store / name / "v1" / "manifest.json").read_text())[
            "totals"
        ]
        assert (found["n"], found["rows"]) == (totals["tokens"], totals["rows"])
    decoded = query(
        store, "select decode(prompt_ids, 'kto') as text from kto limit 1"
    ).to_pylist()
    assert decoded == [{"text": f"<s> {pairs(0, 1)[0]['prompt']}"}]


def test_a_plan_expects_about_what_comes(folder: Path, build: Build) -> None:
    for method in ("dpo", "kto"):
        config = config_of(folder, method)
        expected_ = total(estimate(make_plan(resolve(load_config(config)))))
        totals = build(config).manifest.totals
        assert expected_.documents == pytest.approx(totals.documents, rel=0.3)
        assert expected_.tokens == pytest.approx(totals.tokens, rel=0.3)


@pytest.mark.parametrize(
    ("column", "change", "law"),
    [
        ("chosen_labels", lambda ids: [*ids[:-1], 7], "chosen_labels"),
        ("chosen_labels", lambda ids: ids[:-1], "chosen_labels"),
        (
            "rejected_attention_mask",
            lambda ids: [0, *ids[1:]],
            "rejected_attention_mask",
        ),
        ("chosen_input_ids", lambda ids: [9, *ids[1:]], "chosen_input_ids"),
        ("prompt_input_ids", lambda ids: [], "ids"),
        ("position", lambda place: -1, "provenance"),
        ("file", lambda place: 5, "provenance"),
    ],
)
def test_deep_verification_finds_rows_that_contradict_themselves(
    store: Path, tmp_path: Path, column: str, change: Any, law: str
) -> None:
    manifest = Catalog(open_store(store)).manifest("dpo", 1)
    sound = rows_of_store(store, "dpo")
    rows = sound.to_pylist()
    rows[3][column] = change(rows[3][column])
    check = RowCheck(RowRules.of(manifest))
    check.add(pa.Table.from_pylist(rows, schema=sound.schema))
    assert law in {problem for problem, _, _ in check.faults.values()}
    good = RowCheck(RowRules.of(manifest))
    good.add(sound)
    assert not good.faults
    assert good.hasher.digest() == manifest.files[0].logical


def test_text_has_a_hash_that_does_not_depend_on_how_it_lies(tmp_path: Path) -> None:
    texts = pa.table(
        {"prompt": pa.array(["", "a\u00e9", "bc", "", "d"], pa.large_string())}
    )
    whole, pieces, other = LogicalHasher(), LogicalHasher(), LogicalHasher()
    whole.update(texts)
    for first in range(0, 5, 2):
        pieces.update(texts.slice(first, 2))
    other.update(
        pa.table(
            {"prompt": pa.array(["", "a", "\u00e9bc", "", "d"], pa.large_string())}
        )
    )
    assert whole.digest() == pieces.digest() != other.digest()
    with open_writer(tmp_path / "x.parquet", texts.schema) as writer:
        writer.write_table(texts)
    again = LogicalHasher()
    again.update(pq.read_table(tmp_path / "x.parquet"))
    assert again.digest() == whole.digest()
