"""Bad records on the command line: every JSON output stands, ``inspect`` and ``plan``
name the same records, and a failed build says where its bad records are.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import tokenlake as tl
from tests.introspection.test_introspector import CHAT, prose
from tests.text.chat_samples import CHATML
from tokenlake.cli.app import main
from tokenlake.errors import TooManyBadRecordsError

Output = pytest.CaptureFixture[str]

# Kind of a bad line -> its bytes, among lines with the field `text`.
LINES: dict[str, bytes] = {
    "cut": b'{"text": "a',
    "no JSON": b"nonsense",
    "list": b'["text"]',
    "string": b'"text"',
    "null": b'{"text": null}',
    "number": b'{"text": 7}',
    "large number": b'{"text": 123456789012345678901234567890}',
    "not finite": b'{"text": 1e999}',
    "NaN": b'{"text": NaN}',
    "object": b'{"text": {"a": [1, {"b": null}]}}',
    "other field": b'{"other": "x"}',
    "no name": b'{"": 1}',
    "bytes": b'{"text": "\xff\xfe"}',
    "half of a pair": b'{"text": "\\ud800"}',
    "deep": b'{"text": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "deep and cut": b'{"text": ' + b"[" * 5_000,
    "NUL": b'{"text": "a"}\x00',
}


def strict_json(text: str) -> Any:
    """Return the value of a JSON text, which has neither NaN nor Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def write(path: Path, bad_lines: list[bytes]) -> Path:
    """Write good lines with bad ones from line 3 on."""
    lines = [json.dumps({"text": text}).encode() for text in prose(12)]
    lines[2:2] = bad_lines
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Path:
    path = tmp_path / "bad.yaml"
    options = {
        "datasets": [{"name": "a", "data_files": str(tmp_path / "a.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "save": {"output_dir": str(tmp_path / "store")},
        "source": {"on_bad_record": "quarantine", "max_bad_fraction": 1.0},
    }
    path.write_text(yaml.safe_dump(options))
    return path


@pytest.mark.parametrize("kind", LINES)
def test_json_of_an_inspection_and_a_plan_stands_for_each_kind_of_bad_record(
    tmp_path: Path, config: Path, capsys: Output, kind: str
) -> None:
    path = write(tmp_path / "a.jsonl", [LINES[kind]])
    assert main(["inspect", str(path), "--json"]) == 0
    (group,) = strict_json(capsys.readouterr().out)["groups"]
    assert main(["plan", str(config), "--json"]) == 0
    estimate = strict_json(capsys.readouterr().out)["estimate"]
    assert (group["sampled"], estimate["sampled_records"]) == (13, 13)
    # Both judge the same records, by the same reasons, at the same places.
    planned = {}
    for reason in estimate["bad_reasons"]:
        planned[reason["reason"]] = (reason["records"], reason["first"])
    inspected = {}
    for reason, records in group["bad"].items():
        inspected[reason] = (records, group["first_bad"][reason])
    assert inspected == planned
    ((records, first),) = planned.values()
    assert (records, first) == (1, "a.jsonl:3")


def test_json_of_a_build_and_of_its_version_stands_for_all_kinds(
    tmp_path: Path, config: Path, capsys: Output
) -> None:
    write(tmp_path / "a.jsonl", list(LINES.values()))
    run = ["run", str(config), "--no-prefect", "--workers", "1", "--json"]
    assert main(run) == 0
    account = strict_json(capsys.readouterr().out)["account"]
    assert sum(account["quarantined"].values()) == len(LINES)
    store = ["--store", str(tmp_path / "store"), "--json"]
    for command in (
        ["show", "bad"],
        ["ls"],
        ["peek", "bad"],
        ["verify", "bad", "--deep"],
        ["sql", 'select * from "bad/quarantine"'],
    ):
        assert main([*command, *store]) == 0, command
        assert strict_json(capsys.readouterr().out)
    # With the policy `fail`, the error is JSON.
    assert main([*run, "--set", "source.on_bad_record=fail"]) == 1
    assert strict_json(capsys.readouterr().err.splitlines()[-1])["place"]


def test_json_of_other_formats_stands(tmp_path: Path, capsys: Output) -> None:
    """A CSV row with too many cells, and a JSON array with other values."""
    (tmp_path / "a.csv").write_text('text,n\na,1\nb,2,3\n"c",4\n')
    (tmp_path / "b.json").write_text('[{"text": "a"}, 7, {"text": null}]')
    (tmp_path / "c.txt").write_bytes(b"a \xff b")
    for name in ("a.csv", "b.json", "c.txt"):
        assert main(["inspect", str(tmp_path / name), "--json"]) == 0
        (group,) = strict_json(capsys.readouterr().out)["groups"]
        assert group["bad"], name
        assert group["first_bad"].keys() == group["bad"].keys()


# -- conversations


@pytest.fixture
def chats(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A file of conversations with bad ones, and a chat tokenizer beside it."""
    shutil.copytree(tokenizer_dir, tmp_path / "tok")
    settings_path = tmp_path / "tok/tokenizer_config.json"
    settings = json.loads(settings_path.read_text())
    settings_path.write_text(json.dumps({**settings, "chat_template": CHATML}))
    no_role = [{"content": "who?"}, CHAT[1]]
    lines = [json.dumps({"messages": CHAT})] * 40
    lines[4] = json.dumps({"messages": no_role})
    lines[9] = '{"messages": ['
    lines[20] = json.dumps({"messages": no_role})
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_inspect_with_a_tokenizer_and_plan_name_the_same_conversations(
    tmp_path: Path, chats: Path, capsys: Output
) -> None:
    tokenizer = str(tmp_path / "tok")
    assert main(["inspect", str(chats), "--tokenizer", tokenizer]) == 0
    page = re.sub(r"\n *#? *", " ", capsys.readouterr().out)
    sentence = (
        "3 of 40 sampled records are bad: invalid_json 1 (first: chats.jsonl:10), no_role 2 (first: "
        "chats.jsonl:5)"
    )
    assert page.count(sentence) == 2  # in the findings and above the entry
    # The fraction that is proposed allows as many.
    assert (
        "max_bad_fraction: 0.1\n"
        in tl.inspect(str(chats), tokenizer=tokenizer).proposal
    )
    path = tmp_path / "c.yaml"
    arguments = ["--tokenizer", tokenizer, "--store", str(tmp_path / "store")]
    assert main(["init", str(path), "--data", str(chats), *arguments]) == 0
    assert main(["plan", str(path)]) == 0
    assert f"chats: {sentence}; a run ends at one of them" in capsys.readouterr().err
    options = re.compile(r"# ((?:on_bad_record|max_bad_fraction): )")
    proposed = options.sub(r"\1", path.read_text())
    path.write_text(proposed)
    assert main(["run", str(path), "--no-prefect", "--workers", "1"]) == 0


def test_inspect_without_a_tokenizer_names_the_command_that_renders(
    chats: Path, capsys: Output
) -> None:
    assert main(["inspect", str(chats)]) == 0
    page = re.sub(r"\n *#? *", " ", capsys.readouterr().out)
    assert (
        "1 of 40 sampled records is bad: invalid_json 1 (first: chats.jsonl:10)" in page
    )
    assert "`tokenlake plan` also name those that cannot be rendered" in page
    assert tl.inspect(str(chats)).groups[0].judged is False


# -- a build that fails


def test_a_plan_says_that_the_share_of_bad_records_is_too_large(
    tmp_path: Path, config: Path, capsys: Output
) -> None:
    write(tmp_path / "a.jsonl", [LINES["null"]] * 2)
    limit = ["--set", "source.max_bad_fraction=0.01"]
    assert main(["plan", str(config), *limit]) == 0
    note = capsys.readouterr().err
    assert (
        "14.29% are more than max_bad_fraction allows (0.01), so that a run ends"
        in note
    )
    (fraction,) = re.findall(r"max_bad_fraction: (\S+) allows them", note)
    run = ["run", str(config), "--no-prefect", "--workers", "1"]
    assert main([*run, *limit]) == 1
    assert main([*run, "--set", f"source.max_bad_fraction={fraction}"]) == 0


def test_a_failed_build_says_where_its_bad_records_are_and_how_to_remove_it(
    tmp_path: Path, config: Path, capsys: Output
) -> None:
    write(tmp_path / "a.jsonl", [LINES["null"], LINES["cut"]])
    store = tmp_path / "store"
    with pytest.raises(TooManyBadRecordsError) as caught:
        tl.build_dataset(
            {**yaml.safe_load(config.read_text()), "name": "bad"}
            | {"source": {"on_bad_record": "quarantine", "max_bad_fraction": 0.1}}
        )
    (named,) = re.findall(r"(\S+)/\*\.parquet has each record", str(caught.value))
    assert pq.read_table(named).column("reason").to_pylist() == [
        "null_text",
        "invalid_json",
    ]

    # The view of the documentation names the same files.
    place = ["--store", str(store)]
    assert main(["sql", 'select * from "bad/quarantine"', *place]) == 2
    assert (
        f"bad@v1 is not committed: its bad records are in {named}/*.parquet"
        in capsys.readouterr().err
    )
    assert main(["sql", 'select * from "other/quarantine"', *place]) == 2
    assert "not committed" not in capsys.readouterr().err

    # rm names the command that removes it now.
    assert main(["rm", "bad@v1", *place]) == 2
    (command,) = re.findall(r"`tokenlake (gc [^`]*)`", capsys.readouterr().err)
    assert main([*command.split(), *place]) == 0
    assert not Path(named).exists()
