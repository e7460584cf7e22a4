"""Exports that are there already: compared when they are exported again, verified
without a store, and imported with all their splits.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

import tokenlake as tl
from tests.builds import Config
from tests.export.test_round_trips import FORMATS
from tokenlake.cli.app import main
from tokenlake.errors import (
    ConfigError,
    DamagedFileError,
    IntegrityError,
    NotFoundError,
)
from tokenlake.etl import build_dataset
from tokenlake.runtime.loader import open as open_dataset
from tokenlake.runtime.store import open_store

Output = pytest.CaptureFixture[str]

WIDTH: Final = 32


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """A store with packed rows and documents, in splits of usual and other names."""
    folder = tmp_path_factory.mktemp("lake")
    lines = [json.dumps({"text": f"document {i}: " + "lakes " * 9}) for i in range(90)]
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n")
    config: Config = {
        "name": "packed",
        "datasets": [{"name": "a", "data_files": str(folder / "lines.jsonl")}],
        "default_tokenizer": str(tokenizer_dir),
        "source": {"splits": {"train": 0.8, "validation": 0.1, "holdout": 0.1}},
        "pack": {"enabled": True, "seq_length": WIDTH},
        "save": {"output_dir": str(folder / "store")},
    }
    build_dataset(config, workers=0)
    build_dataset({**config, "name": "texts", "pack": {"enabled": False}}, workers=0)
    return folder / "store"


@pytest.fixture(autouse=True)
def _this_store(lake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(lake))
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))


def exported(lake: Path, target: Path, format_name: str, name: str = "packed") -> Path:
    if format_name == "array_record":
        pytest.importorskip("array_record.python.array_record_module")
    tl.export_version(lake / name, target, format_name)
    return target


def data_file(target: Path) -> Path:
    """Return the largest data file of an export."""
    paths = [
        path
        for path in target.rglob("*")
        if path.is_file() and "_tokenlake" not in path.parts
    ]
    return max(paths, key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def contents(target: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    }


def export_again(target: Path, format_name: str, *options: str) -> int:
    return main(["export", "packed", str(target), "--format", format_name, *options])


def test_several_missing_files_are_written_again(
    lake: Path, tmp_path: Path, capsys: Output
) -> None:
    target = exported(lake, tmp_path / "out", "mds")
    whole = contents(target)
    data_files = [path for path in target.rglob("*") if path.name.startswith("shard.")]
    index_files = list(target.rglob("index.json"))
    removed = [*data_files, *index_files]
    for path in removed:
        path.unlink()
    assert export_again(target, "mds") == 0
    sentence = f"{len(removed)} files of this export were missing, and they were written again: "
    assert sentence in capsys.readouterr().err
    assert contents(target) == whole


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_missing_file_is_written_again_and_one_that_differs_is_an_error(
    lake: Path, tmp_path: Path, capsys: Output, format_name: str
) -> None:
    target = exported(lake, tmp_path / "out", format_name)
    whole = contents(target)
    damaged_file = data_file(target)
    name = damaged_file.relative_to(target).as_posix()
    # Whole: nothing is written, and the output says what was compared.
    assert export_again(target, format_name) == 0
    assert "already there, sizes and hashes match" in capsys.readouterr().out
    # Missing.
    damaged_file.unlink()
    assert export_again(target, format_name) == 0
    captured = capsys.readouterr()
    assert "already there" not in captured.out
    assert f"1 file of this export was missing, and it was written again: {name}" in (
        captured.err
    )
    assert contents(target) == whole
    # Another byte, or another size: the work of a person is not replaced unasked.
    for damage, word in ((flip, "sha256"), (cut, "bytes, expected")):
        damage(damaged_file)
        damaged = contents(target)
        assert export_again(target, format_name) == IntegrityError.exit_code
        message = " ".join(capsys.readouterr().err.split())
        for part in (name, word, "--overwrite", "packed@v1"):
            assert part in message
        assert contents(target) == damaged
        assert export_again(target, format_name, "--overwrite") == 0
        assert contents(target) == whole
        capsys.readouterr()


def test_the_numbers_of_an_export_say_how_it_was_compared(
    lake: Path, tmp_path: Path, capsys: Output
) -> None:
    target = tmp_path / "out"
    first = tl.export_version(lake / "packed", target, "mds")
    assert (first.compared, first.missing_paths) == ("", [])
    assert tl.export_version(lake / "packed", target, "mds").compared == "hashes"
    shutil.rmtree(target / "validation")
    again = tl.export_version(lake / "packed", target, "mds")
    assert (again.compared, len(again.missing_paths)) == ("", 2)
    assert export_again(target, "mds", "--json") == 0
    assert json.loads(capsys.readouterr().out)["compared"] == "hashes"


def test_a_folder_of_a_split_that_was_emptied_is_filled_again(
    lake: Path, tmp_path: Path
) -> None:
    target = exported(lake, tmp_path / "out", "mds")
    whole = contents(target)
    for path in (target / "validation").iterdir():
        path.unlink()
    tl.export_version(lake / "packed", target, "mds")
    assert contents(target) == whole


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_is_verified_without_its_store(
    lake: Path,
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    format_name: str,
) -> None:
    target = exported(lake, tmp_path / "out", format_name)
    monkeypatch.setenv("TOKENLAKE_STORE", str(tmp_path / "nothing"))
    assert main(["verify", str(target)]) == 0
    assert f"intact (packed v1 as {format_name}; " in capsys.readouterr().out
    report = tl.verify_export(target)
    assert (report.ok, report.dataset, report.version) == (True, "packed", 1)
    assert report.bytes == sum(
        file["bytes"]
        for file in json.loads((target / "_tokenlake/manifest.json").read_bytes())[
            "files"
        ]
    )

    damaged_file = data_file(target)
    name = damaged_file.relative_to(target).as_posix()
    for damage, word in ((flip, "sha256"), (cut, "size"), (Path.unlink, "missing")):
        damage(damaged_file)
        assert main(["verify", str(target), "--json"]) == IntegrityError.exit_code
        record = json.loads(capsys.readouterr().out)
        assert record["ok"] is False
        [problem] = record["problems"]
        assert (problem["path"], problem["problem"]) == (name, word)


def test_verify_takes_exports_beside_versions(
    lake: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = exported(lake, tmp_path / "out", "mds")
    (target / "notes.txt").write_text("mine")
    assert main(["verify", "packed", str(target)]) == 0
    captured = capsys.readouterr()
    assert "packed v1: intact" in captured.out
    assert "1 file that the manifest does not list: notes.txt" in captured.err
    # A plain name is that of a dataset; a path, or a name of none, is a folder.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(target, "packed")
    for name, expected in (("packed", "v1: intact ("), ("out", "out: intact (packed")):
        assert main(["verify", name]) == 0
        assert expected in capsys.readouterr().out
    assert main(["verify", "./packed"]) == 0
    assert "./packed: intact (packed v1 as mds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "{out}", "--deep"], "--deep decodes the rows of versions"),
        (
            ["verify", "out", "--store", "{out}/.."],
            "no dataset of a store but an export",
        ),
        (["verify", "{empty}"], "_tokenlake/manifest.json: missing"),
        (["verify", "{lake}/packed"], "did you mean packed --store"),
    ],
)
def test_what_verify_cannot_do(
    lake: Path, tmp_path: Path, capsys: Output, arguments: list[str], message: str
) -> None:
    exported(lake, tmp_path / "out", "jsonl")
    (tmp_path / "empty").mkdir()
    places = {"out": tmp_path / "out", "empty": tmp_path / "empty", "lake": lake}
    assert main([argument.format(**places) for argument in arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_python_door_of_versions_names_that_of_exports(
    lake: Path, tmp_path: Path
) -> None:
    target = exported(lake, tmp_path / "out", "jsonl")
    with pytest.raises(NotFoundError, match="verify_export"):
        tl.verify(target)


def test_a_damaged_manifest_is_a_problem(lake: Path, tmp_path: Path) -> None:
    target = exported(lake, tmp_path / "out", "jsonl")
    cut(target / "_tokenlake" / "manifest.json")
    [problem] = tl.verify_export(target).problems
    assert (problem.path, problem.problem) == ("_tokenlake/manifest.json", "damaged")


@pytest.mark.parametrize("format_name", ["mds", "npy", "array_record"])
def test_a_number_of_files_must_suit_all_splits_before_anything_is_written(
    lake: Path, tmp_path: Path, format_name: str
) -> None:
    target = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"which has \d+ rows?; .*--split train"):
        exported_with_20_files(lake, target, format_name)
    assert list(tmp_path.iterdir()) == []
    stats = exported_with_20_files(lake, target, format_name, split="train")
    assert stats.num_examples > 20


def exported_with_20_files(
    lake: Path, target: Path, format_name: str, **options: Any
) -> tl.WriteStats:
    shards: list[int] = []
    if format_name == "array_record":
        pytest.importorskip("array_record.python.array_record_module")
    stats = tl.export_version(
        lake / "packed",
        target,
        format_name,
        num_shards=20,
        on_progress=lambda progress: shards.append(progress.shards),
        **options,
    )
    assert shards
    return stats


def test_a_folder_with_another_export_says_which(
    lake: Path, tmp_path: Path, capsys: Output
) -> None:
    target = exported(lake, tmp_path / "out", "mds")
    assert export_again(target, "jsonl") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "it holds an export of packed@v1 in format mds); nothing was" in message
    assert export_again(target, "mds", "--split", "train") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "in format mds with other options: split None, now 'train');" in message
    with pytest.raises(
        ConfigError, match="it holds an export of packed@v1 in format mds"
    ):
        tl.export_version(lake / "texts", target, "mds")


# -- imports


def imported(
    lake: Path, data: Path, format_name: str, name: str, **options: Any
) -> Any:
    return tl.import_tokens(
        data,
        tokenizer=lake / "packed" / "v1" / "tokenizer",
        format="numpy" if format_name == "npy" else format_name,  # type: ignore[arg-type]
        name=name,
        store=lake,
        workers=0,
        **options,
    )


def rows_of(version: Path, split: str) -> list[dict[str, Any]]:
    with open_dataset(version, split=split) as rows:
        table = rows.read(0, len(rows)).to_pylist()
    columns = ("input_ids", "segment_lengths")
    return [{name: row[name] for name in columns if name in row} for row in table]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", ["packed", "texts"])
def test_an_import_of_an_export_has_its_splits(
    lake: Path, tmp_path: Path, name: str, format_name: str
) -> None:
    target = exported(lake, tmp_path / "out", format_name, name)
    is_packed = name == "packed" and format_name not in ("numpy", "npy")
    options = {"packed": WIDTH} if is_packed else {}
    new_name = f"{name}-{format_name}".replace("_", "-")
    result = imported(lake, target, format_name, new_name, **options)
    original = tl.Catalog(open_store(lake)).manifest_of(name)
    assert result.manifest.totals.tokens == original.totals.tokens
    assert set(result.manifest.splits) == {"train", "validation", "holdout"}
    # No note says that files were not read.
    assert not [note for note in result.notes if "not read" in note]
    for split in original.splits:
        if is_packed or name == "texts":
            rows = rows_of(Path(result.path), split)
            assert rows == rows_of(lake / name / "v1", split)


def test_one_split_of_an_export_is_read_on_request(lake: Path, tmp_path: Path) -> None:
    target = exported(lake, tmp_path / "out", "mds")
    result = imported(lake, target, "mds", "one", packed=WIDTH, split="holdout")
    assert list(result.manifest.splits) == ["train"]
    rows = rows_of(Path(result.path), "train")
    assert rows == rows_of(lake / "packed/v1", "holdout")
    # An export of one split keeps its name.
    tl.export_version(lake / "packed", tmp_path / "val", "mds", split="validation")
    result = imported(lake, tmp_path / "val", "mds", "val", packed=WIDTH)
    assert list(result.manifest.splits) == ["validation"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_damaged_export_is_refused_by_its_manifest(
    lake: Path, tmp_path: Path, format_name: str
) -> None:
    target = exported(lake, tmp_path / "out", format_name)
    damaged_file = data_file(target)
    name = damaged_file.relative_to(target).as_posix()
    for damage, words in (
        (flip, "has sha256"),
        (cut, "bytes, expected"),
        (Path.unlink, "is missing"),
    ):
        damage(damaged_file)
        with pytest.raises(DamagedFileError) as caught:
            imported(lake, target, format_name, "damaged", packed=WIDTH)
        for part in (name, words, "Export packed@v1 again"):
            assert part in str(caught.value)


def test_a_single_file_of_an_export_is_compared_and_can_be_imported_as_it_is(
    lake: Path, tmp_path: Path
) -> None:
    target = exported(lake, tmp_path / "out", "jsonl")
    file = target / "train-00000-of-00001.jsonl"
    text = file.read_text().replace("1", "2", 1)
    file.write_text(text)
    with pytest.raises(
        DamagedFileError, match=r"train-00000-of-00001\.jsonl has sha256"
    ):
        imported(lake, file, "jsonl", "edited", packed=WIDTH)
    shutil.rmtree(target / "_tokenlake")
    imported(lake, file, "jsonl", "edited", packed=WIDTH)


def test_the_audit_of_packed_rows_uses_words_of_readers(
    lake: Path, tmp_path: Path, capsys: Output
) -> None:
    target = exported(lake, tmp_path / "out", "mds")
    imported(lake, target, "mds", "words", packed=WIDTH)
    assert main(["show", "words"]) == 0
    text = capsys.readouterr().out
    assert "one per kept row" in text
    assert "further from the same rows" in text
    assert "expanded" not in text
