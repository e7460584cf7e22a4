"""Finding a tokenizer, what its files say, and what it does."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import promise
from tests.tokenizer_reference import ReferenceTokenizer, needs_stages, open_backend
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import Spec, changed
from tokenlake.errors import SourceNotFoundError, TokenizerError
from tokenlake.etl.tokenizers import TokenizerFiles, describe, identity, load_tokenizer

LIB = Path(__file__).resolve().parents[2] / "lib"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = samples.save(samples.sentencepiece(), tmp_path / "llama-small")
    (made / "config.json").write_text("{}")
    return made


@pytest.fixture
def hub(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hub cache with one repository; asking the network is impossible."""
    repo = tmp_path / "hf" / "hub" / "models--org--small"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc123")
    (repo / "snapshots").mkdir()
    folder.rename(repo / "snapshots" / "abc123")
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Whoever imported it before has its answer from then, and would ask the network,
    # many times.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return repo


def test_a_directory_or_its_json_gives_the_same_files(folder: Path) -> None:
    by_folder, by_file = (
        load_tokenizer(folder),
        load_tokenizer(folder / "tokenizer.json"),
    )
    assert by_folder.files == by_file.files == samples.sentencepiece().files
    assert by_folder.name == str(folder) and by_folder.revision is None


def test_a_json_of_another_name_stands_alone(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "mine.json")
    files = load_tokenizer(folder / "mine.json")
    assert (
        list(files.files) == ["tokenizer.json"]
        and files.eos_id is None
        and files.vocab_size > 259
    )


@pytest.mark.parametrize("name", ["org/small", "org/small@main", "org/small@abc123"])
def test_the_hub_cache_is_used_without_asking_the_hub(hub: Path, name: str) -> None:
    files = load_tokenizer(name)
    assert files.files == samples.sentencepiece().files
    assert files.name == name and files.revision == "abc123"


def test_a_cached_tokenizer_imports_neither_huggingface_hub_nor_transformers(
    hub: Path,
) -> None:
    code = (
        "import sys; from tokenlake.etl.tokenizers.files import load_tokenizer; load_tokenizer('org/small').eos_id;"
        "print(*sorted({'huggingface_hub', 'transformers', 'polars', 'awkward'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=LIB,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_an_unknown_hub_id_says_where_it_was_looked_for(hub: Path) -> None:
    with pytest.raises(
        SourceNotFoundError, match=r"'org/smoll'.*not in the Hub's cache"
    ):
        load_tokenizer("org/smoll")


def test_a_mistyped_path_is_never_a_hub_id(folder: Path) -> None:
    message = r"no such file or directory; .* has '(llama-small|tokenizer\.json)'"
    for wrong in (folder.with_name("llama-smal"), folder / "tokeniser.json"):
        with pytest.raises(SourceNotFoundError, match=message):
            load_tokenizer(wrong)


@needs_stages
def test_a_folder_without_a_vocabulary_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError,
        match=r"no tokenizer\.json among no files.*expected tokenizer\.json, or one of",
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"x")
    for name in (tmp_path, tmp_path / "spiece.model"):
        with pytest.raises(
            TokenizerError,
            match=r"no tokenizer\.json, and transformers cannot load its files \(",
        ):
            load_tokenizer(name)
    (tmp_path / "mine.model").write_bytes(b"x")
    with pytest.raises(
        TokenizerError, match=r"cannot read a \.model file; expected tokenizer\.json"
    ):
        load_tokenizer(tmp_path / "mine.model")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """The vocabulary and merges of a byte-level BPE in files of their own, as GPT-2
    was released.
    """
    folder, model = tmp_path / "slow", samples.byte_level().spec["model"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (
        pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@needs_stages
@promise(322)
def test_files_without_a_tokenizer_json_are_converted_by_transformers(
    slow: Path,
) -> None:
    files = load_tokenizer(slow)
    assert files.name == str(slow)
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(files.files)
    assert b"local_files_only" not in files.files["tokenizer_config.json"]
    assert files.eos_token == "<|endoftext|>"
    ours = ReferenceTokenizer(files.json_bytes)
    theirs = ReferenceTokenizer(samples.byte_level().json_bytes)
    for text in ("Hello world", "été, 1234\n\n  x", *samples.training_texts()[:50]):
        assert ours.encode(text).ids == theirs.encode(text).ids
    assert load_tokenizer(slow / "vocab.json").files == files.files


def test_a_repository_of_the_cache_without_a_tokenizer_json_is_not_converted_unasked(
    hub: Path,
) -> None:
    snapshot = hub / "snapshots" / "abc123"
    (snapshot / "tokenizer.json").rename(
        snapshot / "vocab.json"
    )  # the Hub may have one that was not downloaded
    with pytest.raises(SourceNotFoundError, match="not in the Hub's cache"):
        load_tokenizer("org/small")


def test_named_tokens_come_from_the_config() -> None:
    files = samples.sentencepiece()
    assert (files.bos_token, files.eos_token, files.pad_token) == ("<s>", "</s>", None)
    assert (files.bos_id, files.eos_id, files.pad_id) == (1, 2, None)
    assert files.special_tokens == ("<unk>", "<s>", "</s>")
    assert files.vocab_size == len(files.spec["model"]["vocab"])


def test_special_tokens_map_fills_what_the_config_leaves_open() -> None:
    base = samples.sentencepiece().files["tokenizer.json"]
    files = TokenizerFiles(
        name="x",
        files={
            "tokenizer.json": base,
            "tokenizer_config.json": b'{"eos_token": null, "bos_token": "<s>", "pad_token": "<nowhere>"}',
            "special_tokens_map.json": b'{"eos_token": {"content": "</s>"}, "bos_token": "</s>"}',
        },
    )
    assert (files.bos_id, files.eos_id) == (1, 2)
    assert files.pad_token == "<nowhere>" and files.pad_id is None


def test_files_survive_pickling_and_cannot_be_changed() -> None:
    files = samples.byte_level()
    again = pickle.loads(pickle.dumps(files))
    assert (
        again.files == files.files
        and again.name == files.name
        and again.eos_id == files.eos_id
    )
    with pytest.raises(TypeError):
        files.files["tokenizer.json"] = b""  # pyright: ignore[reportIndexIssue]


def test_a_description_is_json_and_does_not_depend_on_the_name() -> None:
    files = samples.sentencepiece()
    other = TokenizerFiles(name="another name", files=files.files, revision="1")
    description = describe(files)
    assert json.loads(json.dumps(description)) == description
    assert description != describe(other) and identity(description) == identity(
        describe(other)
    )
    assert (description["prefix"], description["suffix"], description["eos_id"]) == (
        [1],
        [],
        2,
    )
    assert (
        description["vocab_size"] == files.vocab_size
        and len(description["probe_ids"]) == 16
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["model"]["merges"].__delitem__(slice(50, None)),
        lambda spec: spec.update(post_processor=None),
        lambda spec: spec["added_tokens"].pop(),
        lambda spec: spec.update(normalizer=None),
    ],
    ids=["a merge", "bos", "a special token", "normalizer"],
)
def test_a_changed_behaviour_changes_the_probe(
    change: Callable[[Spec], object],
) -> None:
    files = samples.sentencepiece()
    assert describe(changed(files, change))["probe"] != describe(files)["probe"]


def test_a_swapped_backend_changes_the_probe_of_the_same_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = describe(samples.sentencepiece())
    without_bos = samples.changed(
        samples.sentencepiece(), lambda spec: spec.update(post_processor=None)
    )
    backend = open_backend(without_bos.json_bytes)

    class Swapped:
        """Reads every file as another tokenizer."""

        @staticmethod
        def from_buffer(data: bytes) -> Any:
            return backend

        @staticmethod
        def from_file(path: str) -> Any:
            return backend

    monkeypatch.setattr("tokenizers.Tokenizer", Swapped)
    after = describe(samples.sentencepiece())
    assert after["files"] == before["files"] and after["probe"] != before["probe"]


@pytest.mark.parametrize("gap", [0, 5, 4000])
def test_added_tokens_are_numbered_as_the_backend_does(gap: int) -> None:
    def change(spec: Spec) -> None:
        flags = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        first = len(spec["model"]["vocab"]) + gap
        contents = [("<a>", True), ("<b>", False), ("th", False), ("<c>", True)]
        new = [
            {"id": first + i, "content": c, "special": s, **flags}
            for i, (c, s) in enumerate(contents)
        ]
        spec["added_tokens"] = [*spec["added_tokens"], *new]

    files = changed(samples.byte_level(), change)
    backend = ReferenceTokenizer(files.json_bytes)
    for token in ("<a>", "<b>", "th", "<c>", "<|endoftext|>"):
        assert [files.token_id(token)] == backend.encode(token).ids


def test_an_eos_whose_id_is_not_the_backends_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TokenizerFiles, "token_id", lambda self, token: 77)
    with pytest.raises(
        TokenizerError, match="has id 77 by its files and 1 by its backend"
    ):
        describe(samples.sentencepiece())


def test_a_hub_that_cannot_be_reached_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client's HTTP library raises; the real client tries again for
    half a minute first.
    """

    class ConnectError(Exception):
        """No OSError, like those of the HTTP library."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ConnectError("Name or service not known")

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.list_repo_files", fail)
    with pytest.raises(
        SourceNotFoundError,
        match=r"nobody/nothing.*ConnectError: Name or service not known",
    ):
        load_tokenizer("nobody/nothing")


def test_a_tokenizer_is_described_without_pandas(tokenizer_dir: Path) -> None:
    """pyarrow imports it at the first array made of Python objects: a quarter of a
    second of every command.
    """
    code = (
        "import sys; from tokenlake.etl.tokenizers.files import load_tokenizer; "
        "from tokenlake.etl.tokenizers.fingerprint import describe; "
        f"describe(load_tokenizer({str(tokenizer_dir)!r})); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
