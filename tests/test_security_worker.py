"""What a deployment's parameters may not reach: files behind links, tokenizers, templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.remote_support import documents, jsonl, listed
from tokenlake.errors import ConfigError, SourceError
from tokenlake.prefect.tasks.policy import check_paths
from tokenlake.prefect.tasks.request import resolve_request


def check(environment: dict[str, str], output: str = "/data/out", **dataset: Any) -> None:
    given = {"data_files": "s3://any", "name": "s", "tokenizer": "org/tokenizer", **dataset}
    check_paths(
        resolve_request({"name": "x", "datasets": [given], "save": {"output_dir": output}}), environment
    )


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("raw", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(jsonl(documents(3)))
    (tmp_path / "raw" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "raw" / "b.jsonl").symlink_to(tmp_path / "secret" / "a.jsonl")
    return tmp_path


OUTSIDE = "is outside what this worker allows"


@pytest.mark.parametrize(
    "files",
    [
        "raw/link/a.jsonl",
        "raw/b.jsonl",
        "raw/../secret/a.jsonl",
        "raw/link/*.jsonl",
        "secret",
        "raw/link/../x",
    ],
)
def test_inputs_through_links_and_dots(folders: Path, files: str) -> None:
    with pytest.raises(ConfigError, match=OUTSIDE):
        check({"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")}, data_files=f"{folders}/{files}")
    with pytest.raises(ConfigError, match=OUTSIDE):
        check({"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")}, data_files=f"file://{folders}/{files}")


def test_links_that_only_the_listing_finds(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(listed(f"{folders}/raw/*.jsonl")) == 2
    check({"TOKENLAKE_ALLOWED_INPUTS": str(folders / "raw")}, data_files=f"{folders}/raw/*.jsonl")
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", str(folders / "raw"))
    with pytest.raises(
        SourceError, match=r"b\.jsonl: a link leads it to .*secret.*outside what this environment"
    ):
        listed(f"{folders}/raw/*.jsonl")
    assert len(listed(f"{folders}/raw/a.jsonl")) == 1
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", f"{folders}/raw:{folders}/secret")
    assert len(listed(f"{folders}/raw/*.jsonl")) == 2


def test_outputs_through_links(folders: Path) -> None:
    allowed = {"TOKENLAKE_ALLOWED_OUTPUTS": str(folders / "raw")}
    check(allowed, output=f"{folders}/raw/new")
    for output in ("raw/link/new", "raw/../secret", "elsewhere"):
        with pytest.raises(ConfigError, match=OUTSIDE):
            check(allowed, output=f"{folders}/{output}")


def test_files_of_documents_to_leave_out(folders: Path) -> None:
    with pytest.raises(ConfigError, match=rf"exclude of 's': .* {OUTSIDE}"):
        check({"TOKENLAKE_ALLOWED_INPUTS": f"{folders}/raw:s3://any"}, exclude=f"{folders}/secret/a.parquet")


def test_tokenizers(folders: Path) -> None:
    inputs = {"TOKENLAKE_ALLOWED_INPUTS": f"{folders}/raw:s3://any"}
    check(inputs)
    check(inputs, tokenizer=f"{folders}/raw")
    for path in (
        f"{folders}/secret",
        f"{folders}/raw/link",
        "../secret",
        "~/.ssh",
        f"{folders}/raw/../secret",
    ):
        with pytest.raises(ConfigError, match=rf"the tokenizer of 's': .* {OUTSIDE}"):
            check(inputs, tokenizer=path)
    listed_only = {"TOKENLAKE_ALLOWED_TOKENIZERS": f"{folders}/raw:org/*:openai-community/gpt2"}
    for name in ("org/any", "org/any@v2", "openai-community/gpt2", f"{folders}/raw"):
        check(listed_only, tokenizer=name)
    for name in ("other/any", "openai-community/gpt2-xl", "gpt2"):
        with pytest.raises(ConfigError, match="is not one that this worker allows"):
            check(listed_only, tokenizer=name)
    with pytest.raises(ConfigError, match=OUTSIDE):
        check(listed_only, tokenizer=f"{folders}/secret")


def test_templates_that_are_files(folders: Path) -> None:
    inputs = {"TOKENLAKE_ALLOWED_INPUTS": f"{folders}/raw:s3://any"}
    check(inputs, chat={"template": "{{ messages }}"})
    check(inputs, chat={"template": "tool_use"})
    check(inputs, chat={"template": f"{folders}/raw/a.jsonl"})
    for path in ("/etc/passwd", f"{folders}/secret/a.jsonl", f"{folders}/raw/b.jsonl"):
        with pytest.raises(ConfigError, match=rf"the template of 's': .* {OUTSIDE}"):
            check(inputs, chat={"template": path})


def test_functions_are_refused_unless_named() -> None:
    for name in ("os:system", "subprocess:run", "builtins:eval", "our_callbacks.other:run"):
        with pytest.raises(ConfigError, match="is not one that this worker allows"):
            check({"TOKENLAKE_ALLOWED_CALLABLES": "our_callbacks.text:*"}, transforms=[{"apply": name}])
        with pytest.raises(ConfigError, match="nothing at all"):
            check({}, transforms=[{"apply": name}])
    check(
        {"TOKENLAKE_ALLOWED_CALLABLES": "our_callbacks.text:*"},
        transforms=[{"apply": "our_callbacks.text:clean"}],
    )
