"""``tokenlake tag``, and the rest of the command line beside tags."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_catalog import commit, manifest
from tokenlake import Catalog
from tokenlake.cli.app import main
from tokenlake.runtime.store import open_store

Output = pytest.CaptureFixture[str]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    found = Catalog(open_store(tmp_path))
    for version in (1, 2, 3):
        commit(found.store, "code", version)
    monkeypatch.setenv("TOKENLAKE_STORE", str(tmp_path))
    return found


def say(capsys: Output, *arguments: str) -> str:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def as_json(capsys: Output, *arguments: str) -> Any:
    return json.loads(say(capsys, *arguments, "--json"))


def failing(capsys: Output, *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


def test_setting_moving_listing_removing(catalog: Catalog, capsys: Output) -> None:
    assert say(capsys, "tag", "code@v1", "prod") == "code@prod is v1\n"
    assert say(capsys, "tag", "code@1", "prod") == "code@prod is v1 already\n"
    assert say(capsys, "tag", "code", "prod") == "code@prod is v3; it was v1\n"
    assert say(capsys, "tag", "code@prod", "best") == "code@best is v3\n"
    lines = [line.split() for line in say(capsys, "tag", "code").splitlines()]
    seal = manifest("code", 3).sha256
    assert lines == [
        ["tag", "version", "manifest"],
        ["best", "v3", seal],
        ["prod", "v3", seal],
    ]
    assert (
        say(capsys, "tag", "code", "best", "--remove")
        == "code@best is removed (was v3)\n"
    )
    assert [each.tag for each in catalog.tags("code")] == ["prod"]


def test_json_has_stable_keys(catalog: Catalog, capsys: Output) -> None:
    first = {
        "dataset": "code",
        "tag": "prod",
        "version": 1,
        "manifest_sha256": manifest("code", 1).sha256,
    }
    assert as_json(capsys, "tag", "code") == []
    assert as_json(capsys, "tag", "code@v1", "prod") == first | {
        "moved_from": None,
        "changed": True,
    }
    assert as_json(capsys, "tag", "code@v1", "prod") == first | {
        "moved_from": 1,
        "changed": False,
    }
    assert as_json(capsys, "tag", "code") == [first]
    moved = as_json(capsys, "tag", "code@v2", "prod")
    assert (moved["version"], moved["moved_from"], moved["changed"]) == (2, 1, True)
    removed = {"dataset": "code", "tag": "prod", "removed_from": 2}
    assert as_json(capsys, "tag", "code", "prod", "--remove") == removed
    assert catalog.tags("code") == []


def test_a_dataset_without_tags_says_how_to_make_one(
    catalog: Catalog, capsys: Output
) -> None:
    code, err = failing(capsys, "tag", "code")
    assert (code, err) == (
        0,
        "code has no tags yet: `tokenlake tag code@v1 prod` sets one\n",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["code@v9", "prod"], 2, "code@v9 in .* does not exist"),
        (["prose", "prod"], 2, "no dataset 'prose'"),
        (["prose"], 2, "no dataset 'prose'"),
        (["code@v1", "v3"], 1, "the tag name 'v3' is refused"),
        (["code@v1"], 2, "tags are listed per dataset: `tokenlake tag code`"),
        (["code", "--remove"], 2, "--remove takes a dataset and one of its tags"),
        (
            ["code@v1", "prod", "--remove"],
            2,
            "--remove takes a dataset and one of its tags",
        ),
        (["code", "prod", "--remove"], 2, "no tag 'prod'"),
        (["code@prod", "best"], 2, "no tag 'prod'"),
    ],
)
def test_mistakes(
    catalog: Catalog, capsys: Output, arguments: list[str], code: int, message: str
) -> None:
    got, err = failing(capsys, "tag", *arguments)
    assert got == code
    assert err.startswith("error: ")
    assert re.search(message, err)
    assert catalog.tags("code") == []


def test_a_damaged_tag_is_removed_by_its_name(catalog: Catalog, capsys: Output) -> None:
    catalog.store.put_new("code/tags/prod.json", b"{}")
    assert main(["tag", "code@v1", "prod"]) == 3
    capsys.readouterr()
    assert (
        say(capsys, "tag", "code", "prod", "--remove")
        == "code@prod is removed (its file was damaged)\n"
    )


def test_ls_and_show_name_the_tags_of_a_version(
    catalog: Catalog, capsys: Output
) -> None:
    assert "tags" not in say(capsys, "ls")
    for name in ("prod", "best"):
        catalog.set_tag("code", name, 2)
    lines = say(capsys, "ls").splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("tags")
    assert [line.endswith("best, prod") for line in lines[1:]] == [False, True, False]
    assert [each["tags"] for each in as_json(capsys, "ls", "code")] == [
        [],
        ["best", "prod"],
        [],
    ]
    for name, told in (
        ("prod", "v2  tokens, committed, tagged best, prod"),
        ("v1", "v1  tokens, committed"),
    ):
        assert say(capsys, "show", f"code@{name}", "--files").startswith(
            f"code {told}\n"
        )
    assert as_json(capsys, "show", "code@best")["version"] == 2


def test_verify_takes_a_tag_and_sees_no_stray_files(
    catalog: Catalog, capsys: Output
) -> None:
    catalog.set_tag("code", "prod", 2)
    assert say(capsys, "verify", "code@prod").startswith("code v2: intact")
