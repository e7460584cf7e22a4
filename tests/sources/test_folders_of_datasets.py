"""What lies in folders beside data: saved datasets, descriptions, marks, links; and
compressed files on every road.
"""

from __future__ import annotations

import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.builds import config_of
from tests.sources.support import COMPRESS, inputs
from tokenlake.errors import ConfigError, DamagedFileError, SourceNotFoundError

HOLDOUT = "holdout"


def record(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


def read(data_files: Any, **options: Any) -> list[str]:
    return [
        row["text"] for row in tl.create_source({"data_files": data_files, **options})
    ]


def save_dataset(
    folder: Path, texts: list[str], split: str | None = None, **state: Any
) -> Path:
    """Write a folder as `datasets.Dataset.save_to_disk` does, in two shards."""
    folder.mkdir(parents=True, exist_ok=True)
    half = (len(texts) + 1) // 2
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for name, some in zip(names, (texts[:half], texts[half:]), strict=True):
        table = pa.table({"text": pa.array(some, pa.string())})
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    described = {
        "_data_files": [{"filename": name} for name in names],
        "_split": split,
        **state,
    }
    (folder / "state.json").write_text(json.dumps(described))
    (folder / "dataset_info.json").write_text(
        '{"features": {"text": {"dtype": "string"}}}'
    )
    return folder


def save_dict(folder: Path, splits: dict[str, list[str]]) -> Path:
    """Write a folder as `datasets.DatasetDict.save_to_disk` does."""
    for split, texts in splits.items():
        save_dataset(folder / split, texts, split)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


# -- folders that `datasets` saved


def test_a_saved_dataset_is_read_by_what_it_says_of_its_files(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "saved", ["a", "b", "c"])
    # Results of `map` that `datasets` keeps beside the rows.
    (folder / "cache-1b2c.arrow").write_bytes(
        (folder / "data-00000-of-00002.arrow").read_bytes()
    )
    for options in ({}, {"split": "train"}, {"type": "arrow"}):
        assert read(str(folder), **options) == ["a", "b", "c"]
    assert read(f"{folder}/data-*.arrow") == ["a", "b", "c"]
    with pytest.raises(
        ConfigError, match=r"no split 'test'; as it was saved it has train \(2 files\)"
    ):
        read(str(folder), split="test")
    assert (tl.inspect(folder).files, tl.inspect(folder).runnable) == (2, True)


def test_a_saved_dataset_that_was_a_split_is_that_split(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "saved", ["a", "b"], "test[:2]")
    assert read(str(folder)) == read(str(folder), split="test") == ["a", "b"]
    with pytest.raises(ConfigError, match="no split 'train'"):
        read(str(folder), split="train")


def test_the_splits_of_a_saved_dictionary_act(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    folder = save_dict(tmp_path / "saved", {"train": ["a", "b"], HOLDOUT: ["c", "d"]})
    assert read(str(folder)) == ["a", "b"]
    assert read(str(folder), split=HOLDOUT) == ["c", "d"]
    assert read(f"{folder}/{HOLDOUT}") == ["c", "d"]
    with pytest.raises(
        ConfigError,
        match=r"as it was saved it has train \(2 files\), holdout \(2 files\)",
    ):
        read(str(folder), split="test")
    plan = tl.plan(config_of(tmp_path, folder, tokenizer_dir))
    assert plan.left_out == (
        f"s: {folder}: split 'train', 2 files; not read: holdout (2 files)",
    )
    assert [split.name for split in tl.inspect(folder).splits] == [HOLDOUT, "train"]


def test_saved_datasets_below_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_dataset(tmp_path / "all" / name, [name, name])
    assert read(str(tmp_path / "all")) == ["x", "x", "y", "y"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("state.json", "{", r"state\.json: it is not JSON"),
        ("state.json", "[]", "expected a JSON object, got a list"),
        ("state.json", "{}", "must be a list of {filename: NAME}; got None"),
        (
            "state.json",
            '{"_data_files": [{"filename": "../x.arrow"}]}',
            r"got \{'filename': '\.\./x\.arrow'\}",
        ),
        (
            "state.json",
            '{"_data_files": [], "_indices_data_files": [{}]}',
            "a list of row indices",
        ),
        ("dataset_dict.json", '{"splits": []}', r'expected \{"splits": \[names\]\}'),
        ("dataset_dict.json", "{}", r'expected \{"splits": \[names\]\}'),
    ],
)
def test_a_saved_dataset_that_does_not_say_what_it_holds_is_refused(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    folder = save_dict(tmp_path / "saved", {"train": ["a", "b"]})
    (folder / ("train" if name == "state.json" else "") / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        read(str(folder))


def test_what_the_library_itself_saves_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "tags": [["x"], []]})
    rows.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"train": rows, HOLDOUT: rows.select([1])}).save_to_disk(
        str(tmp_path / "both")
    )
    assert (
        list(tl.create_source({"data_files": str(tmp_path / "one")})) == rows.to_list()
    )
    assert read(str(tmp_path / "both"), split=HOLDOUT) == ["b"]


# -- what is no data


NO_DATA = {
    "dataset_info.json": "{}",
    "dataset_infos.json": "{}",
    "dataset_dict.json": '{"splits": ["train"]}',
    "README.md": "---\nlicense: mit\n---\n# About\n",
    ".gitattributes": "*.parquet filter=lfs",
    ".hidden.jsonl": "x",
    "_SUCCESS": "",
    "_temporary/0.jsonl": "x",
}


@pytest.mark.parametrize("entry", ["", "*", "**/*", "*.js*"])
@pytest.mark.parametrize("kind", [None, "txt"])
def test_files_beside_data_are_no_data(
    tmp_path: Path, entry: str, kind: str | None
) -> None:
    for name, text in NO_DATA.items():
        if name != "dataset_dict.json" or entry:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
    (tmp_path / "_temporary/0.jsonl").unlink()
    end = "txt" if kind else "jsonl"
    for name in ("a", "b"):
        (tmp_path / f"{name}.{end}").write_bytes(record(name))
    if entry == "*.js*" and kind:
        with pytest.raises(SourceNotFoundError, match="nothing matches"):
            inputs(tmp_path / entry, type="text")
        return
    options = {"type": "text"} if kind else {}
    assert [file.path for file in inputs(tmp_path / entry, **options)] == [
        f"a.{end}",
        f"b.{end}",
    ]


def test_a_file_that_is_named_is_data(tmp_path: Path) -> None:
    for name in ("dataset_info.json", "README.md", "_part"):
        (tmp_path / name).write_text(json.dumps([{"text": name}]))
        assert read(str(tmp_path / name), type="json") == [name]
    assert [file.path for file in inputs(tmp_path / "*.md", type="text")] == [
        "README.md"
    ]
    assert [file.path for file in inputs(tmp_path / "_*", type="text")] == ["_part"]


def test_a_readme_that_is_no_card_is_a_text_where_text_is_asked_for(
    tmp_path: Path,
) -> None:
    for name in ("README.md", "guide.md"):
        (tmp_path / name).write_text("# Words\n")
    assert [file.path for file in inputs(tmp_path, type="text")] == [
        "README.md",
        "guide.md",
    ]


# -- a bucket is read as a folder is


def test_a_bucket_has_the_splits_the_card_and_the_descriptions_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", "memory")
    bucket = fsspec.filesystem("memory")

    def put(name: str, folder: Path) -> str:
        for path in folder.rglob("*"):
            if path.is_file():
                bucket.pipe_file(
                    f"/{name}/{path.relative_to(folder)}", path.read_bytes()
                )
        return f"memory://{name}"

    names = tmp_path / "names"
    names.mkdir()
    for name in ("train-0", "train-1", "test-0"):
        (names / f"{name}.jsonl").write_bytes(record(name))
    (names / "dataset_infos.json").write_text("{}")
    url = put("names", names)
    assert (read(url), read(url, split="test")) == (["train-0", "train-1"], ["test-0"])
    assert read(f"{url}/*.js*") == ["test-0", "train-0", "train-1"]
    assert read(
        {"train": f"{url}/train-*", "test": f"{url}/test-0.jsonl"}, split="test"
    ) == ["test-0"]
    with pytest.raises(
        ConfigError, match=r"no split 'dev'.* it has train \(2 files\), test \(1 file\)"
    ):
        read(url, split="dev")
    with pytest.raises(ConfigError, match="have no subsets"):
        read(f"{url}/*.jsonl", subset="en")

    (names / "README.md").write_text(
        "---\nconfigs:\n- config_name: odd\n  data_files: '*-0.jsonl'\n- config_name: all\n  data_dir: .\n---\n"
    )
    url = put("card", names)
    assert read(url, subset="odd") == ["test-0", "train-0"]
    with pytest.raises(
        ConfigError, match=r"has several subsets and no default one; .* it has odd, all"
    ):
        read(url)
    url = put(
        "saved",
        save_dict(tmp_path / "saved", {"train": ["a", "b"], HOLDOUT: ["c", "d"]}),
    )
    assert (read(url), read(url, split=HOLDOUT)) == (["a", "b"], ["c", "d"])
    assert [split.name for split in tl.inspect(url).splits] == [HOLDOUT, "train"]


# -- links


def links(folder: Path) -> Path:
    (folder / "v3").mkdir(parents=True)
    (folder / "v3" / "x.jsonl").write_bytes(record("x"))
    (folder / "latest").symlink_to("v3")
    return folder


@pytest.mark.parametrize(
    "entries",
    [
        [""],
        ["*/x.jsonl"],
        ["*/*.jsonl"],
        ["**/x.jsonl"],
        ["**"],
        ["v3/x.jsonl", "latest/x.jsonl"],
        ["v3", "latest/*.jsonl"],
        ["v3/*.jsonl", "l*/*.jsonl", "latest"],
        ["{latest,v3}/x.jsonl"],
    ],
)
@pytest.mark.parametrize("around", [False, True])
def test_a_file_that_links_lead_to_is_read_once(
    tmp_path: Path, entries: list[str], around: bool
) -> None:
    folder = links(tmp_path / "data")
    if around:  # links that lead back
        (folder / "self").symlink_to(".")
        (folder / "v3" / "up").symlink_to("..")
    found = [str(folder / entry) for entry in entries]
    assert read(found) == ["x"]
    assert len(tl.expand_data_files(found)) == 1
    # The name that comes first, folder by folder, is the file's.
    (file,) = inputs(*found)
    assert Path(file.url) == folder / "latest" / "x.jsonl"


def test_a_link_to_a_file_beside_it_is_no_second_file(tmp_path: Path) -> None:
    for name in ("2024.jsonl", "2025.jsonl"):
        (tmp_path / name).write_bytes(record(name))
    (tmp_path / "latest.jsonl").symlink_to("2025.jsonl")
    for entry in ("", "*.jsonl", "20*.jsonl"):
        assert read(str(tmp_path / entry)) == ["2024.jsonl", "2025.jsonl"]
    assert read(str(tmp_path / "latest.jsonl")) == ["2025.jsonl"]
    # Files with equal bytes are two; so are two names of one inode.
    (tmp_path / "copy.jsonl").write_bytes(record("2025.jsonl"))
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "2025.jsonl")
    assert len(read(str(tmp_path))) == 4


@settings(max_examples=30)
@given(data=st.data())
def test_a_glob_of_everything_finds_what_a_folder_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("tree")
    names = st.sampled_from(["a", "b", "b-c", "c"])
    folders = [root]
    for _ in range(data.draw(st.integers(1, 6))):
        above = data.draw(st.sampled_from(folders))
        path = above / data.draw(names)
        if path.exists() or path.is_symlink():
            continue
        if data.draw(st.booleans()):
            path.mkdir()
            folders.append(path)
            (path / "x.jsonl").write_bytes(record(str(path)))
        else:
            path.symlink_to(data.draw(st.sampled_from(folders)))
    (root / "x.jsonl").write_bytes(record("root"))
    assert inputs(root) == inputs(root / "**" / "*.jsonl")


# -- compressed files on every road


@pytest.mark.parametrize("end", [".bz2", ".xz"])
def test_compressed_files_are_read_on_every_road(
    tmp_path: Path, tokenizer_dir: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    compress = COMPRESS[end]
    members = compress(record("first text")) + compress(record("second text"))
    (data / f"x.jsonl{end}").write_bytes(members)
    (data / f"x.json{end}").write_bytes(compress(b'[{"text": "third text"}]'))
    (data / f"x.csv{end}").write_bytes(compress(b"text\nfourth text\n"))
    (data / f"x.txt{end}").write_bytes(compress(b"fifth text"))
    texts = ["fourth text", "third text", "first text", "second text", "fifth text"]
    assert read(str(data)) == texts
    config = config_of(tmp_path, data, tokenizer_dir, on_bad_record="quarantine")
    assert tl.build_dataset(config, workers=1).manifest.totals.documents == 5
    rows = tl.Pipeline.from_config(config).source().tokenize().build()
    assert len(list(rows)) == 5
    monkeypatch.setenv("TOKENLAKE_ALLOWED_SCHEMES", "memory")
    for path in data.iterdir():
        fsspec.filesystem("memory").pipe_file(
            f"/packed{end}/{path.name}", path.read_bytes()
        )
    assert read(f"memory://packed{end}") == texts
    assert sum(tl.inspect(data).groups[0].formats.values()) == 4
    (data / f"x.jsonl{end}").write_bytes(members[:-5])
    with pytest.raises(DamagedFileError, match="stream is cut or corrupt"):
        read(str(data / f"x.jsonl{end}"))
    (data / f"x.parquet{end}").write_bytes(b"")
    with pytest.raises(ConfigError, match="Decompress it first"):
        read(str(data / f"x.parquet{end}"))


def test_the_padding_that_xz_allows_is_no_data(tmp_path: Path) -> None:
    stream = lzma.compress(record("a"))
    for padding, damaged in (
        (b"\0" * 8, False),
        (b"\0" * 7, True),
        (b"\0" * 65536, False),
        (b"\0\0\0\1", True),
    ):
        (tmp_path / "x.jsonl.xz").write_bytes(stream + padding + stream)
        if damaged:
            with pytest.raises(DamagedFileError, match="stream is cut or corrupt"):
                read(str(tmp_path / "x.jsonl.xz"))
        else:
            assert read(str(tmp_path / "x.jsonl.xz")) == ["a", "a"]


def test_a_stream_that_wants_gigabytes_of_memory_is_refused(tmp_path: Path) -> None:
    stream = bytearray(lzma.compress(record("a")))
    # The header of the first block: its size, flags, LZMA2 (0x21, 1 byte), the
    # dictionary's size, padding, CRC32.
    assert stream[12:16] == b"\x02\x00\x21\x01"
    stream[16] = 40  # 4 GiB
    stream[20:24] = zlib.crc32(stream[12:20]).to_bytes(4, "little")
    (tmp_path / "x.jsonl.xz").write_bytes(stream)
    with pytest.raises(DamagedFileError, match="Memory usage limit exceeded"):
        read(str(tmp_path / "x.jsonl.xz"))
