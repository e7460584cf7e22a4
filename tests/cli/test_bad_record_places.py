"""Places of quarantined records: in the quarantine, in SQL and in messages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.small_build import write_config, write_lines
from tests.text.chat_samples import CHATML
from tokenlake import Catalog
from tokenlake.cli.app import main
from tokenlake.etl import build_dataset
from tokenlake.etl.sources import place_of, position_kinds_of
from tokenlake.runtime.store import open_store

Output = pytest.CaptureFixture[str]
LENIENT = {"on_bad_record": "quarantine", "max_bad_fraction": 0.9}
GOOD = {"text": "A lake holds water."}
BAD = {"text": None}
LINES: list[Any] = [GOOD, BAD, "", GOOD, "{", *[GOOD] * 60, BAD]
"""Lines of a file; the lines 2, 5 and 66 are bad, and line 3 is blank."""


def _places(folder: Path, capsys: Output) -> list[str]:
    """Return the places that ``tokenlake sql`` lists, in their order.

    Each one must be that of the record in the quarantine.
    """
    statement = 'select * from "small/quarantine" order by path, position'
    store = folder / "store"
    capsys.readouterr()
    assert main(["sql", statement, "--json", f"--store={store}"]) == 0
    records = json.loads(capsys.readouterr().out)
    kinds = position_kinds_of(Catalog(open_store(str(store))).manifest_of("small"))
    places: list[str] = []
    for record in records:
        kind = kinds[record["file"]]
        place = place_of(record["path"], record["position"], record["line"], kind)
        assert next(iter(record)) == "place"
        assert record["place"] == place
        places.append(place)
    return places


@pytest.mark.parametrize("unit_size", [256, 1 << 20])
def test_lines_are_counted_across_units_and_in_compressed_files(
    unit_size: int, tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    plain = write_lines(tmp_path / "a.jsonl", LINES)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as file:
        file.write(plain.read_bytes())
    source = LENIENT | {"unit_size": unit_size}
    config = write_config(tmp_path, tokenizer_dir, "*.jsonl*", source=source)
    build_dataset(str(config), workers=1)
    expected = [f"{name}:{n}" for name in ("a.jsonl", "b.jsonl.gz") for n in (2, 5, 66)]
    assert _places(tmp_path, capsys) == expected


def test_a_csv_record_of_several_lines_has_its_first_one(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    rows = 'text,n\n"A\nlake",1\n"holds\nwater\n",1,2\nfine,3\ntoo,many,cells\n'
    (tmp_path / "a.csv").write_text(rows)
    config = write_config(tmp_path, tokenizer_dir, "*.csv", source=LENIENT)
    build_dataset(str(config), workers=1)
    assert _places(tmp_path, capsys) == ["a.csv:4", "a.csv:8"]


def test_a_csv_record_whose_field_does_not_fit_has_its_first_line(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    (tmp_path / "a.csv").write_text('text,n\n"A\nlake",1\n"holds\nwater",no\n')
    fields = {"additional_fields": ["n"], "field_types": {"n": "int64"}}
    config = write_config(
        tmp_path,
        tokenizer_dir,
        "*.csv",
        dataset=fields,
        source=LENIENT,
        pack={"enabled": False},
    )
    build_dataset(str(config), workers=1)
    assert _places(tmp_path, capsys) == ["a.csv:4"]


def test_records_of_parquet_have_their_row(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    texts = ["A lake", None, "holds", "water", None]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=2)
    config = write_config(tmp_path, tokenizer_dir, "*.parquet", source=LENIENT)
    build_dataset(str(config), workers=1)
    assert _places(tmp_path, capsys) == ["a.parquet:1", "a.parquet:4"]


def test_elements_of_an_array_and_documents_of_text_have_a_place(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    (tmp_path / "a.json").write_text(json.dumps([GOOD, BAD], indent=1))
    config = write_config(tmp_path, tokenizer_dir, "*.json", source=LENIENT)
    build_dataset(str(config.rename(tmp_path / "config.yaml")), workers=1)
    assert _places(tmp_path, capsys) == ["a.json at position 1"]
    (tmp_path / "a.txt").write_bytes(b"A lake\xff")
    (tmp_path / "b.txt").write_text("A lake.")
    config = write_config(tmp_path, tokenizer_dir, "*.txt", source=LENIENT)
    build_dataset(str(config), workers=1)
    assert _places(tmp_path, capsys) == ["a.txt:1"]


@pytest.mark.parametrize("unit_size", [256, 1 << 20])
def test_conversations_have_lines_in_every_unit(
    unit_size: int, tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    good = {"messages": [{"role": "user", "content": "A lake"}]}
    bad = {"messages": [{"role": "user", "content": 7}]}
    write_lines(tmp_path / "a.jsonl", [good, bad, "", *[good] * 20, "{", bad])
    chat = {"chat": {"template": CHATML, "loss": "all"}}
    config = write_config(
        tmp_path,
        tokenizer_dir,
        dataset=chat,
        source=LENIENT | {"unit_size": unit_size},
    )
    build_dataset(str(config), workers=1)
    assert _places(tmp_path, capsys) == ["a.jsonl:2", "a.jsonl:24", "a.jsonl:25"]


@pytest.mark.parametrize("splits", [{"train": 1.0}, {"a": 0.5, "b": 0.5}])
def test_texts_that_spell_a_special_token_have_lines(
    splits: dict[str, float], tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    tokenizer = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    spelled = tokenizer["added_tokens"][0]["content"]
    bad = {"text": f"A {spelled} lake"}
    write_lines(tmp_path / "a.jsonl", [GOOD, bad, "", *[bad, GOOD] * 20])
    config = write_config(
        tmp_path,
        tokenizer_dir,
        source=LENIENT | {"unit_size": 256, "splits": splits},
        tokenize={"special_tokens_in_text": "fail"},
    )
    build_dataset(str(config), workers=1)
    lines = [2, *range(4, 44, 2)]
    assert _places(tmp_path, capsys) == [f"a.jsonl:{line}" for line in lines]


def test_the_summary_of_a_run_says_how_to_list_bad_records(
    tmp_path: Path,
    tokenizer_dir: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(tmp_path / "store"))
    statement = "'select place, reason, detail from \"small/quarantine\"'"
    write_lines(tmp_path / "a.jsonl", LINES)
    config = write_config(tmp_path, tokenizer_dir, source=LENIENT)
    run = ["run", str(config), "--no-prefect", "--workers=1"]
    assert main(run) == 0
    assert f"\ntokenlake sql {statement}\n" in capsys.readouterr().out
    write_lines(tmp_path / "a.jsonl", [GOOD])
    assert main(run) == 0
    assert "quarantine" not in capsys.readouterr().out


def test_too_many_bad_records_name_the_line_of_the_first(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    write_lines(tmp_path / "a.jsonl", [GOOD, *[BAD] * 30])
    config = write_config(
        tmp_path, tokenizer_dir, source=LENIENT | {"max_bad_fraction": 0.01}
    )
    assert main(["run", str(config), "--no-prefect", "--workers=1"]) == 1
    assert "the first: a.jsonl:2: null_text" in capsys.readouterr().err
