"""The proposed configuration: valid, runnable, and honest about what it leaves out."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
import yaml

from tests.introspection.test_introspector import (
    CHAT,
    inspect,
    prose,
    write_lines,
    write_parquet,
)
from tokenlake import build_dataset, load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError

TEXTS = [*prose(40), 'quotes " and; commas, \n and lines', "日本語 été"]


def write_json(path: Path, column: str) -> None:
    path.write_text(
        json.dumps(
            [{column: text, "id": i} for i, text in enumerate(TEXTS)],
            ensure_ascii=False,
        )
    )


def write_csv(path: Path, column: str, delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", column])
        writer.writerows([i, text] for i, text in enumerate(TEXTS))


def write_arrow(path: Path, column: str) -> None:
    table = pa.table({"id": list(range(len(TEXTS))), column: TEXTS})
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.jsonl": lambda path: write_lines(
        path, [{"raw_content": text} for text in TEXTS]
    ),
    "a.jsonl.gz": lambda path: write_lines(
        path, [{"data": {"text": text}} for text in TEXTS]
    ),
    "odd-lines.json": lambda path: write_lines(
        path, [{"text": text} for text in TEXTS]
    ),
    "a.json": lambda path: write_json(path, "body"),
    "a.parquet": lambda path: write_parquet(path, {"id": TEXTS, "Document": TEXTS}),
    "a.csv": lambda path: write_csv(path, "Raw Content"),
    "b.csv": lambda path: write_csv(path, "content", ";"),
    "a.tsv": lambda path: write_csv(path, "text", "\t"),
    "a.arrow": lambda path: write_arrow(path, "content"),
    "a.txt": lambda path: path.write_text("\n".join(TEXTS)),
    "a.txt.gz": lambda path: path.write_bytes(gzip.compress("\n".join(TEXTS).encode())),
    "no-extension": lambda path: write_lines(path, [{"text": text} for text in TEXTS]),
}


def test_the_proposals_for_files_of_every_format_build_them(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    datasets: list[dict[str, Any]] = []
    for name, write in WRITERS.items():
        write(tmp_path / name)
        config = tmp_path / "proposed.yaml"
        config.write_text(
            inspect(tmp_path / name, tokenizer=str(tokenizer_dir)).proposal
        )
        (dataset,) = resolve(load_config(config)).sources  # by itself it is whole
        assert dataset.data_files == (str(tmp_path / name),)
        datasets += yaml.safe_load(config.read_text())["datasets"]
    # One build for all: a build of its own for each takes long, and says the same.
    proposed = yaml.safe_load(config.read_text())
    proposed["datasets"] = [
        entry | {"name": f"s{index}"} for index, entry in enumerate(datasets)
    ]
    result = build_dataset(
        load_config(
            {**proposed, "name": "all", "save": {"output_dir": str(tmp_path / "store")}}
        ),
        workers=1,
    )
    documents = {
        name: account.documents for name, account in result.manifest.accounts.items()
    }
    assert documents == {
        f"s{index}": 1 if "txt" in name else len(TEXTS)
        for index, name in enumerate(WRITERS)
    }


def test_what_cannot_be_built_is_not_proposed(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"number": 1}])
    found = inspect(tmp_path)
    assert not found.runnable
    assert yaml.safe_load(found.proposal) is None
    assert "No column is clearly the text" in found.proposal
    assert ". Sampled 1 of 1 file, " in " ".join(
        found.proposal.replace("#", " ").split()
    )
    (tmp_path / "numbers.yaml").write_text(found.proposal)
    with pytest.raises(ConfigError, match="got nothing, must be a mapping"):
        load_config(tmp_path / "numbers.yaml")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": CHAT}, {"content_field": "messages"}),
        ({"turns": CHAT}, {"chat": {"messages_field": "turns"}}),
        (
            {"system": "s", "question": "a", "answer": "b"},
            {
                "prompt": {
                    "template": "### System:\n{system}\n\n### Instruction:\n{question}\n\n### Response:\n{answer}",
                    "input_columns": ["system", "question"],
                    "label_column": "answer",
                }
            },
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"preference": {"method": "dpo"}},
        ),
        (
            {"question": "a", "better": "b", "worse": "c"},
            {
                "preference": {
                    "method": "dpo",
                    "prompt_field": "question",
                    "chosen_field": "better",
                    "rejected_field": "worse",
                }
            },
        ),
    ],
)
def test_rows_that_are_no_plain_text_get_what_makes_a_text_of_them(
    tmp_path: Path, row: dict[str, Any], expected: dict[str, Any]
) -> None:
    write_lines(tmp_path / "rows.jsonl", [row] * 3)
    proposed = yaml.safe_load(inspect(tmp_path).proposal)
    (dataset,) = proposed["datasets"]
    assert {
        key: dataset[key] for key in dataset.keys() - {"name", "data_files"}
    } == expected
    assert ("pack" in proposed) == ("preference" not in dataset)


def test_what_belongs_apart_is_left_out(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    )
    write_lines(tmp_path / "chat.jsonl", [{"messages": CHAT}] * 5)
    write_lines(tmp_path / "tasks.jsonl", [{"instruction": "a", "output": "b"}])
    found = inspect(tmp_path).proposal
    assert {dataset["name"] for dataset in yaml.safe_load(found)["datasets"]} == {
        "chat",
        "tasks",
    }
    assert "Left out: pairs" in found


def test_without_a_tokenizer_the_line_to_fill_in_is_plain_to_see(
    tmp_path: Path,
) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    proposal = inspect(tmp_path / "a.jsonl").proposal
    (line,) = (line for line in proposal.splitlines() if "default_tokenizer" in line)
    assert line == "# default_tokenizer: openai-community/gpt2"
    (tmp_path / "mine.yaml").write_text(proposal)
    with pytest.raises(ConfigError, match="tokenizer: missing"):
        resolve(load_config(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text(proposal.replace(line, line.removeprefix("# ")))
    (source,) = resolve(load_config(tmp_path / "mine.yaml")).sources
    assert source.tokenizer.name_or_path == "openai-community/gpt2"


@pytest.mark.parametrize(
    "name", ["a: b #c", "null", "'q\" x", "- x", "new\nline", "esc\x1b[31m", "日本 [x]"]
)
def test_names_that_mean_something_to_yaml_stay_names(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    write_lines(folder / "a.jsonl", [{name: "some text", "x\n#y": 1}])
    proposal = inspect(folder, tokenizer=name, columns={"text": name}).proposal
    assert "\x1b" not in proposal
    found = yaml.safe_load(proposal)
    (dataset,) = found["datasets"]
    assert dataset["data_files"] == str(folder)
    assert dataset["content_field"] == name
    assert found["default_tokenizer"] == name
    config = tmp_path / "config.yaml"
    config.write_text(proposal)
    assert load_config(config).datasets[0].content_field == name


def test_options_are_kept_and_secrets_stay_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    url = "memory://options"  # a storage that takes any option
    fsspec.filesystem("memory").pipe_file("/options/a.jsonl", b'{"text": "a"}\n')
    monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", "memory")
    monkeypatch.setenv("MY_KEY", "x")
    overrides = ('storage_options={"anon": false, "key": {"env": "MY_KEY"}}',)
    dataset = yaml.safe_load(inspect(url, type="jsonl", overrides=overrides).proposal)[
        "datasets"
    ][0]
    assert dataset["type"] == "jsonl"
    assert dataset["storage_options"] == {"anon": False, "key": {"env": "MY_KEY"}}
    with pytest.raises(ConfigError, match="literal secret"):
        inspect(tmp_path, overrides=('storage_options={"key": "abc"}',))
    # One that is given in Python is never written.
    found = inspect(url, storage_options={"key": "AKIA123", "endpoint_url": "http://x"})
    with pytest.raises(
        ConfigError, match="storage_options: 'key' given, but local files"
    ):
        inspect(tmp_path, storage_options={"key": "AKIA123"})
    assert "AKIA123" not in found.proposal + json.dumps(found.to_json())
