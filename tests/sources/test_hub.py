"""The Hub: which files a subset and a split are, at which commit, and what is said
when they cannot be read.
"""

from __future__ import annotations

import gzip
import io
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builds import config_of
from tests.seeds import promise
from tests.servers.hub import TOKEN, Fault, HubServer, blob_id, hub
from tests.sources.support import Source, inputs, texts
from tokenlake import load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import (
    ConfigError,
    DamagedFileError,
    InputChangedError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.etl import build_dataset, make_plan
from tokenlake.etl.sources import (
    HubClient,
    InputFile,
    hub_client,
    read_range,
    split_file,
)
from tokenlake.rowwise import downloaded


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub on loopback, for a user who is not logged in."""
    for name in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    # Read when the package was imported.
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(hub_client, "_FIRST_WAIT", 0.01)
    with hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def parquet(*rows: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(rows, pa.string())}), sink)
    return sink.getvalue()


def lines(*rows: str) -> bytes:
    return b"".join(json.dumps({"text": row}).encode() + b"\n" for row in rows)


def card(*configs: str) -> str:
    return "---\nlicense: mit\nconfigs:\n" + "".join(configs) + "---\n# A dataset\n"


def listed(*ids: str, **options: Any) -> list[InputFile]:
    return inputs(*ids, **{"type": "hub", **options})


def paths(*ids: str, **options: Any) -> list[str]:
    return [file.path for file in listed(*ids, **options)]


def read(file: InputFile, **options: Any) -> list[str]:
    source: Any = Source(**options)
    parts = split_file(file, 128 << 20, source.storage_options)
    return texts([batch for part in parts for batch in read_range(part, source)])


def read_all(*ids: str, **options: Any) -> list[str]:
    return [text for file in listed(*ids, **options) for text in read(file)]


# Which files


SHARDED_TRAIN = [
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
]
SHARDED_ODD = "data/odd-00000-of-00001-ab.csv"
NAMES = [
    ({"data.jsonl"}, {"train": ["data.jsonl"]}),
    ({"train.csv", "test.csv"}, {"train": ["train.csv"], "test": ["test.csv"]}),
    (
        {"a/train_0.csv", "a/train_1.csv", "b.csv"},
        {"train": ["a/train_0.csv", "a/train_1.csv"]},
    ),
    (
        {"my-dev.jsonl", "my_eval.jsonl"},
        {"validation": ["my-dev.jsonl"], "test": ["my_eval.jsonl"]},
    ),
    (
        {"data/train/x.csv", "data/test/x.csv"},
        {"train": ["data/train/x.csv"], "test": ["data/test/x.csv"]},
    ),
    (
        {"training/a.csv", "val/a.csv"},
        {"train": ["training/a.csv"], "validation": ["val/a.csv"]},
    ),
    ({*SHARDED_TRAIN, SHARDED_ODD}, {"train": SHARDED_TRAIN, "odd": [SHARDED_ODD]}),
    # A name that only holds the word is of no split; hidden files and descriptions are
    # no data.
    (
        {
            "trainer.csv",
            ".train.csv",
            "__pycache__/train.csv",
            "README.md",
            "config.json",
        },
        {"train": ["trainer.csv"]},
    ),
    ({"trainer.csv", "contest.csv"}, {"train": ["contest.csv", "trainer.csv"]}),
    ({"a.csv", "requirements.txt", "LICENSE", "load.py"}, {"train": ["a.csv"]}),
    ({"a.txt", "LICENSE"}, {"train": ["a.txt"]}),
    (
        {"a.csv", "b.jsonl.gz", "c.parquet"},
        {"train": ["a.csv", "b.jsonl.gz", "c.parquet"]},
    ),
]


@pytest.mark.parametrize(
    ("names", "splits"), NAMES, ids=lambda value: str(sorted(value))[:60]
)
def test_without_a_card_the_names_of_the_files_tell_the_splits(
    server: HubServer, names: set[str], splits: dict[str, list[str]]
) -> None:
    server.repo("org/name", dict.fromkeys(names, b"text\nx\n"))
    for split, expected in splits.items():
        assert paths("org/name", split=split) == expected
    with pytest.raises(ConfigError, match=f"set `split` to one of {', '.join(splits)}"):
        paths("org/name", split="nothing_like_it")


FOLDERS = [
    "",
    "data/",
    "train/",
    "my-test/x/",
    "a/b/",
    "a/validation 1/",
    ".hidden/",
    "__special__/",
]
STEMS = ["train", "test-1", "Train", "dev", "x.eval", "trainer", "contest"]
STEMS += ["x", "my_training", "1test", ".train"]
SHARDS = ["data/train-00000-of-00001", "data/odd-00001-of-00002-abc"]
SHARDS += ["data/test-0-of-1", "x/train-00000-of-00001"]
NAMED = st.sets(
    st.builds(str.__add__, st.sampled_from(FOLDERS), st.sampled_from(STEMS)), max_size=4
)
SHARDED = st.sampled_from(
    [set[str](), set[str](), set[str](), *({shard} for shard in SHARDS)]
)


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(st.builds(set.union, NAMED, SHARDED))
def test_names_mean_what_the_datasets_library_takes_them_for(
    server: HubServer, stems: set[str]
) -> None:
    theirs = pytest.importorskip("datasets.data_files")
    names = sorted(f"{stem}.csv" for stem in stems)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text("x")
        try:
            patterns = theirs.get_data_patterns(folder)
        except theirs.EmptyDatasetError:
            patterns = {}
        found = theirs.DataFilesDict.from_patterns(patterns, base_path=folder)
        expected = {
            s: sorted({Path(p).relative_to(folder).as_posix() for p in found[s]})
            for s in found
        }
    server.repo("org/name", dict.fromkeys(names, b"text\nx\n"))
    for split, files in expected.items():
        assert paths("org/name", split=split) == files
    with pytest.raises(ConfigError) as caught:
        paths("org/name", split="nothing_like_it")
    assert sorted(caught.value.details.get("splits", [])) == sorted(expected)


def test_the_real_client_sees_the_same_hub(server: HubServer, tmp_path: Path) -> None:
    data = {
        "README.md": b"# x\n",
        "data/train-00000-of-00001.parquet": parquet("a", "b"),
        "a/b.csv": b"text\n",
    }
    repo = server.repo("org/name", data)
    repo.commit(data, "v1", tag=True)
    server.page_size = 2
    api = HfApi(endpoint=server.endpoint, token=False)
    assert api.dataset_info("org/name", revision="v1").sha == repo.refs["v1"]
    assert sorted(api.list_repo_files("org/name", repo_type="dataset")) == sorted(data)
    assert [
        tag.name for tag in api.list_repo_refs("org/name", repo_type="dataset").tags
    ] == ["v1"]
    got = api.hf_hub_download(
        "org/name", "a/b.csv", repo_type="dataset", cache_dir=tmp_path
    )
    assert Path(got).read_bytes() == b"text\n"
    files = HfFileSystem(
        endpoint=server.endpoint, token=False, skip_instance_cache=True
    )
    (planned,) = listed("org/name")
    path = planned.url.removeprefix("hf://")
    info = files.info(path)
    assert (info["size"], f"sha256:{info['lfs'].sha256}") == (
        planned.size,
        planned.token,
    )
    assert (
        files.cat_file(path, 4, 40) == data["data/train-00000-of-00001.parquet"][4:40]
    )
    assert files.glob(f"{path.partition('/data/')[0]}/data/*.parquet") == [path]
    server.repo("org/gated", data, gated=True)
    with pytest.raises(GatedRepoError):
        api.auth_check("org/gated", repo_type="dataset")
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("org/nothing")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("org/name", revision="v2")


def test_the_card_says_what_files_mean(server: HubServer) -> None:
    readme = card(
        "- config_name: en\n  data_files: en/*.csv\n  default: true\n",
        "- config_name: de\n  data_files:\n  - split: train\n    path: [de/a.csv, 'de/b*']\n"
        "  - split: test\n    path: de/t.csv\n",
        "- config_name: fr\n  data_dir: fr\n",
        "- config_name: all\n  data_files: ['en/1.csv', '**/t.csv']\n",
    )
    names = ["en/1.csv", "en/2.csv", "de/a.csv", "de/b1.csv", "de/t.csv"]
    names += ["fr/test.csv", "fr/train.csv", "train.csv"]
    server.repo("org/name", {"README.md": readme} | dict.fromkeys(names, b"text\n"))
    assert paths("org/name") == ["en/1.csv", "en/2.csv"]
    assert paths("org/name", subset="de") == ["de/a.csv", "de/b1.csv"]
    assert paths("org/name", subset="de", split="test") == ["de/t.csv"]
    assert paths("org/name", subset="fr", split="test") == ["fr/test.csv"]
    assert paths("org/name", subset="all") == ["de/t.csv", "en/1.csv"]
    for message, asked in (
        (
            r"no subset 'dee'; set `subset` to one of en, de, fr, all; did you mean",
            {"subset": "dee"},
        ),
        (
            r"no split 'trian'; set `split` to one of train, test; did you mean 'tr",
            {"subset": "de", "split": "trian"},
        ),
        (r"'train.:10..' is a slice; .* num_rows", {"split": "train[:10%]"}),
    ):
        with pytest.raises(ConfigError, match=message):
            paths("org/name", **asked)


def test_a_subset_must_be_named_where_no_default_is(server: HubServer) -> None:
    configs = [
        f"- config_name: {name}\n  data_files: {name}.csv\n" for name in ("en", "de")
    ]
    server.repo(
        "org/name",
        {"README.md": card(*configs), "en.csv": "text\n", "de.csv": "text\n"},
    )
    with pytest.raises(
        ConfigError,
        match=r"several subsets and no default one; set `subset` to one of en, de",
    ) as got:
        paths("org/name")
    assert got.value.details["subsets"] == ["en", "de"]


def test_a_split_of_the_card_without_files_is_an_error(server: HubServer) -> None:
    readme = card("- config_name: default\n  data_files: data/*.parquet\n")
    server.repo("org/name", {"README.md": readme, "other.csv": "text\n"})
    with pytest.raises(
        SourceNotFoundError,
        match=r"lists files for it, but none of them is in the repository at",
    ):
        paths("org/name")


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ("- config_name: [\n", "front matter is not YAML"),
        ("- data_files: x\n", "has no config_name"),
        (
            "- config_name: a\n  data_files:\n  - split: a b\n    path: x\n",
            r"is not \{split, path\}",
        ),
        (
            "- config_name: a\n  data_files: s3://bucket/x\n",
            "points outside the repository",
        ),
        ("- config_name: a\n  data_files: ../x\n", "points outside the repository"),
        (
            "- {config_name: default, data_files: x}\n- {config_name: b, default: true}\n",
            "several default subsets",
        ),
        (
            "- config_name: a\n  data_files: ['x', {split: train, path: y}]\n",
            r"is not \{split, path\}",
        ),
    ],
)
def test_a_card_of_no_use_is_an_error(
    server: HubServer, configs: str, message: str
) -> None:
    server.repo("org/name", {"README.md": card(configs), "x": "text\n"})
    with pytest.raises(
        ConfigError, match=rf"the card \(README.md\) cannot be used: .*{message}"
    ):
        paths("org/name")


@pytest.mark.parametrize(
    "text", ["# A dataset\n---\nconfigs:\n", "---\nlicense: mit\n---\n"]
)
def test_a_card_without_configs_says_nothing(server: HubServer, text: str) -> None:
    server.repo("org/name", {"README.md": text, "x.jsonl": lines("1")})
    assert paths("org/name") == ["x.jsonl"]


def test_files_of_mixed_types_are_each_read_as_what_they_are(server: HubServer) -> None:
    server.repo(
        "org/name",
        {
            "a.jsonl": lines("1"),
            "b.parquet": parquet("2", "3"),
            "c.jsonl.gz": gzip.compress(lines("4")),
        },
    )
    assert [file.format for file in listed("org/name")] == ["jsonl", "parquet", "jsonl"]
    assert read_all("org/name") == ["1", "2", "3", "4"]


def test_json_files_of_lines_and_of_arrays_are_told_apart(server: HubServer) -> None:
    files = {
        "a.json": lines("1"),
        "b.json": b'\xef\xbb\xbf \n[{"text": "2"}]',
        "c.json.gz": gzip.compress(lines("3") * 4000),
        "d.json": b"",
    }
    server.repo("org/name", files)
    assert [file.format for file in listed("org/name")] == [
        "jsonl",
        "json",
        "jsonl",
        "json",
    ]


# At which commit


def test_the_commit_is_resolved_once_and_named_in_every_url(server: HubServer) -> None:
    repo = server.repo(
        "org/name", {"train.jsonl": lines("old"), "train.parquet": parquet("old")}
    )
    old = repo.refs["main"]
    files = listed("org/name")
    assert [file.url for file in files] == [
        f"hf://datasets/org/name@{old}/train.jsonl",
        f"hf://datasets/org/name@{old}/train.parquet",
    ]
    assert files[0].token == f"git:{blob_id(lines('old'))}"
    assert files[1].token.startswith("sha256:")
    repo.commit({"train.jsonl": lines("new")})
    # The branch moved, the plan did not.
    assert [text for file in files for text in read(file)] == ["old", "old"]
    assert read_all("org/name") == ["new"]
    assert not server.asked("/main/")


def test_branches_tags_and_commits_can_be_named(server: HubServer) -> None:
    repo = server.repo("org/name")
    first = repo.commit({"train.jsonl": lines("1")}, "v1.0", tag=True)
    repo.commit({"train.jsonl": lines("2")}, "refs/pr/7")
    repo.commit({"train.jsonl": lines("3")}, "a/b")
    repo.commit({"train.jsonl": lines("4")})
    assert read_all("org/name@v1.0") == read_all(f"org/name@{first}") == ["1"]
    assert (
        read_all("org/name@refs/pr/7")
        == read_all("hf://datasets/org/name@refs%2Fpr%2F7")
        == ["2"]
    )
    assert read_all("org/name@a/b") == ["3"]
    assert read_all("hf://datasets/org/name") == ["4"]
    with pytest.raises(
        SourceNotFoundError,
        match=r"no revision 'v1'; it has .*v1\.0; did you mean 'v1\.0'",
    ):
        listed("org/name@v1")


def test_several_datasets_keep_their_ids_in_the_paths(server: HubServer) -> None:
    server.repo("org/one", {"train.jsonl": lines("1")})
    server.repo("two", {"train.jsonl": lines("2")})
    assert paths("two", "org/one") == ["org/one/train.jsonl", "two/train.jsonl"]
    assert read_all("two", "org/one") == ["1", "2"]
    with pytest.raises(
        ConfigError, match=r"'org/one' at two revisions; make them two sources"
    ):
        listed("org/one", "org/one@v1")


def test_long_listings_come_in_pages_and_the_token_stays_here(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.page_size = 4
    server.repo(
        "org/name", {f"{n // 4}/{n:02}.parquet": parquet(str(n)) for n in range(11)}
    )
    assert len(paths("org/name")) == 11
    assert read_all("org/name") == [str(n) for n in range(11)]
    assert len(server.asked("/tree/")) == 2 * 4
    # The link to the next page, and the storage host of large files, are at another
    # address.
    others = [seen for seen in server.seen if seen.host.startswith("localhost")]
    assert {seen.path.split("/")[1] for seen in others} == {"cdn"}
    assert not any(seen.authorized for seen in others)
    assert all(seen.authorized for seen in server.seen if seen not in others)


# The converted branch


def converted(server: HubServer, files: dict[str, bytes], **main: bytes | str) -> str:
    repo = server.repo(
        "org/name", {path.replace("__", "."): data for path, data in main.items()}
    )
    return repo.commit(files, "refs/convert/parquet")


def test_a_loader_script_is_never_run_and_the_converted_branch_is_read(
    server: HubServer,
) -> None:
    files = {
        "en/train/0000.parquet": parquet("1"),
        "en/train/0001.parquet": parquet("2"),
        "de/test/0000.parquet": b"",
    }
    sha = converted(server, files, name__py="raise SystemExit", raw__csv="not\nthis\n")
    got = listed("org/name", subset="en")
    assert all(file.url.startswith(f"hf://datasets/org/name@{sha}/") for file in got)
    assert [text for file in got for text in read(file)] == ["1", "2"]
    assert "because its loader script name.py is never run" in got[0].origin
    assert f"2 files of commit {sha} (refs/convert/parquet)" in got[0].origin
    with pytest.raises(
        ConfigError,
        match=r"never run.* several subsets and no default one; set `subset` to one of de, en",
    ):
        listed("org/name")


def test_a_loader_script_without_a_conversion_is_an_error_with_a_remedy(
    server: HubServer,
) -> None:
    server.repo("org/name", {"name.py": "raise SystemExit", "raw.csv": "a\n"})
    with pytest.raises(
        ConfigError,
        match=r"loader script name\.py is never run, and the Hub has no conversion",
    ) as got:
        listed("org/name")
    assert "1 x .py, 1 x .csv" in str(got.value)
    assert "run it once with an older release of `datasets`" in str(got.value)


def test_formats_that_are_not_read_are_taken_from_the_converted_branch(
    server: HubServer,
) -> None:
    sha = converted(
        server,
        {"default/train/0000.parquet": parquet("x")},
        metadata__csv="text\n",
        a__tar=b"tar",
    )
    assert [file.url for file in listed("org/name")] == [
        f"hf://datasets/org/name@{sha}/default/train/0000.parquet"
    ]
    assert read_all("org/name") == ["x"]
    server.repo("org/tars", {"a.tar": b"tar", "b.tar": b"tar"})
    with pytest.raises(
        ConfigError,
        match=r"files such as a\.tar are not read .* holds 2 x \.tar\. List files",
    ):
        listed("org/tars")
    server.repo("org/empty", {"README.md": "# nothing yet"})
    with pytest.raises(ConfigError, match=r"it holds no data files, .* holds 1 x \.md"):
        listed("org/empty")


def test_a_partial_conversion_is_refused_unless_it_is_asked_for(
    server: HubServer,
) -> None:
    converted(
        server, {"default/partial-train/0000.parquet": parquet("x")}, a__tar=b"tar"
    )
    with pytest.raises(
        ConfigError,
        match=r"of split 'train' the Hub converted only the beginning.*split: partial-train",
    ):
        listed("org/name")
    server.repo("org/other", {"a.csv": "text\n"}).commit(
        {"default/partial-train/0000.parquet": parquet("x")}, "refs/convert/parquet"
    )
    assert paths("org/other") == ["a.csv"]
    assert paths("org/other@refs/convert/parquet", split="partial-train") == [
        "default/partial-train/0000.parquet"
    ]
    assert paths("org/other@~parquet", split="partial-train") == [
        "default/partial-train/0000.parquet"
    ]


def test_big_splits_of_the_converted_branch_come_in_several_folders(
    server: HubServer,
) -> None:
    names = [
        "a/train-part0/0000.parquet",
        "a/train-part1/0000.parquet",
        "a/partial/old/0000.parquet",
    ]
    server.repo("org/name").commit(
        dict.fromkeys(names, parquet("x")), "refs/convert/parquet"
    )
    assert paths("org/name@refs/convert/parquet") == names[:2]
    assert paths("org/name@refs/convert/parquet", split="partial-old") == names[2:]


# URLs


def urls(*entries: str, **options: Any) -> list[str]:
    return [file.path for file in inputs(*entries, **options)]


def test_files_can_be_named_by_url(server: HubServer) -> None:
    repo = server.repo(
        "org/name",
        dict.fromkeys(
            ["a/1.csv", "a/2.csv", "a/b/3.csv", "a/x.md", "odd name.csv"], "text\n"
        ),
    )
    repo.commit({"v.csv": "text\n"}, "v1", tag=True)
    base = "hf://datasets/org/name"
    assert urls(f"{base}/a/1.csv") == ["a/1.csv"]
    assert urls(f"{base}@main/a/*.csv") == ["a/1.csv", "a/2.csv"]
    assert urls(f"{base}/a/**/*.csv", f"{base}/a/1.csv") == [
        "a/1.csv",
        "a/2.csv",
        "a/b/3.csv",
    ]
    assert urls(f"{base}/a") == ["a/1.csv", "a/2.csv", "a/b/3.csv"]
    assert urls(f"{base}/a", type="text") == ["a/x.md"]
    assert urls(f"{base}/odd name.csv") == ["odd name.csv"]
    assert urls(f"{base}@v1/v.csv", f"{base}/a/1.csv") == ["a/1.csv", "v.csv"]
    with pytest.raises(
        SourceNotFoundError,
        match=r"nothing matches 'a/1\.cvs' at commit .*did you mean 'a/1\.csv'",
    ):
        urls(f"{base}/a/1.cvs")


def test_files_beside_ids_are_found_for_a_file_and_a_glob(server: HubServer) -> None:
    names = ["ids/a.array_record", "ids/metadata.json", "metadata.json", "ids/x.json"]
    server.repo("org/ids", dict.fromkeys(names, "x"))
    base = "hf://datasets/org/ids"
    for entry in ("ids", "ids/*.array_record", "ids/a.array_record"):
        assert urls(f"{base}/{entry}", type="array_record") == names[:2]


def test_a_folder_of_a_repository_has_the_splits_of_any_folder(
    server: HubServer,
) -> None:
    names = ["train-0.csv", "test-0.csv", "en/train.csv", "en/test.csv"]
    server.repo("org/names", dict.fromkeys(names, b"text\nx\n"))
    base = "hf://datasets/org/names"
    written = {"split_from": "option"}
    assert paths(base, type=None) == ["en/train.csv", "train-0.csv"]
    assert paths(f"{base}/en", type=None, split="test", **written) == ["en/test.csv"]
    assert paths(f"{base}/*.csv", type=None) == ["test-0.csv", "train-0.csv"]
    assert paths(f"{base}/*.csv", type=None, split="test", **written) == ["test-0.csv"]
    with pytest.raises(
        ConfigError,
        match=r"no split 'dev'; .* it has train \(1 file\), test \(1 file\)",
    ):
        paths(f"{base}/en", type=None, split="dev", **written)
    (file, _) = listed(base, type=None)
    assert "split 'train', 2 files; not read: test (2 files)" in file.origin
    readme = card(
        "- config_name: en\n  data_dir: en\n",
        "- config_name: all\n  data_files: '*.csv'\n",
    )
    server.repo("org/card", {"README.md": readme} | dict.fromkeys(names, b"text\nx\n"))
    assert paths("hf://datasets/org/card", type=None, subset="en") == ["en/train.csv"]
    with pytest.raises(ConfigError, match="has several subsets and no default one"):
        paths("hf://datasets/org/card", type=None)


def test_a_repository_that_holds_a_saved_dataset_is_read_by_what_it_says(
    server: HubServer,
) -> None:
    state = json.dumps(
        {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}
    ).encode()
    saved = {
        f"{split}/{name}": data
        for split in ("train", "holdout")
        for name, data in (
            ("data-00000-of-00001.arrow", b""),
            ("cache-1.arrow", b""),
            ("state.json", state),
            ("dataset_info.json", b"{}"),
        )
    }
    server.repo(
        "org/saved", {**saved, "dataset_dict.json": b'{"splits": ["train", "holdout"]}'}
    )
    for entry, kind in (("org/saved", "hub"), ("hf://datasets/org/saved", None)):
        options = {"type": kind, "split_from": "option"}
        assert paths(entry, **options) == ["train/data-00000-of-00001.arrow"]
        assert paths(entry, split="holdout", **options) == [
            "holdout/data-00000-of-00001.arrow"
        ]
        with pytest.raises(ConfigError, match="no split 'test'"):
            paths(entry, split="test", **options)


def test_ids_and_urls_are_read_as_the_hub_reads_them(server: HubServer) -> None:
    for name in ("org/name", "name"):
        repo = server.repo(name, {"x/y.jsonl": lines(f"{name} main")})
        for revision in ("refs/convert/parquet", "refs/pr/3", "a/b"):
            repo.commit({"x/y.jsonl": lines(f"{name} {revision}")}, revision)
    assert read_all("org/name") == ["org/name main"]
    for entry in ("name@a/b", "hf://datasets/name@a%2Fb"):
        assert read_all(entry) == ["name a/b"]
    for revision in ("main", "refs/convert/parquet", "refs/pr/3", "a/b"):
        for name in ("org/name", "name"):
            url = f"hf://datasets/{name}@{quote(revision, safe='')}/x/y.jsonl"
            assert read_all(url, type=None) == [f"{name} {revision}"]
    # References of the Hub may stand as they are, and of a folder all data is read.
    assert read_all(
        "hf://datasets/org/name@refs/convert/parquet/x/y.jsonl", type=None
    ) == ["org/name refs/convert/parquet"]
    assert read_all("hf://datasets/org/name", type=None) == ["org/name main"]
    with pytest.raises(ConfigError, match=r"expected hf://datasets/org/name/path"):
        listed("hf://datasets/name", type=None)
    for wrong in ("a/b/c", "name@", "https://huggingface.co/datasets/a/b", "*.csv"):
        with pytest.raises(ConfigError, match=r"not the id of a dataset"):
            listed(wrong)


def test_a_local_path_is_never_taken_for_an_id(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repo("data/web", {"train.jsonl": lines("of the Hub")})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/webb.jsonl").write_bytes(lines("of this machine"))
    with pytest.raises(SourceNotFoundError, match=r"nothing matches 'data/web'"):
        inputs("data/web")
    with pytest.raises(
        ConfigError, match=r"a local path, but with `type: huggingface`"
    ):
        listed("data/webb.jsonl")
    with pytest.raises(ConfigError, match=r"a local path"):
        listed("./data/web")
    assert not server.seen
    assert read_all("data/web") == ["of the Hub"]


# What is refused


def test_a_missing_dataset_is_an_error_and_private_ones_look_the_same(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repo("org/secret", {"train.jsonl": lines("x")}, private=True)
    for name in ("org/nothing", "org/secret"):
        with pytest.raises(
            SourceNotFoundError,
            match=f"no dataset '{name}', or it is private and no token was given",
        ):
            listed(name)
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    options = {"token": {"env": "MY_TOKEN"}}
    assert [file.path for file in listed("org/secret", storage_options=options)] == [
        "train.jsonl"
    ]
    with pytest.raises(
        SourceNotFoundError, match=r"the token may have no access to it"
    ) as got:
        listed("org/nothing", storage_options=options)
    assert TOKEN not in str(got.value)


def test_a_gated_dataset_says_how_to_get_access(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = server.repo(
        "org/name", {"train.parquet": parquet("x")}, gated=True, granted=False
    )
    with pytest.raises(
        SourceError,
        match=r"gated: .*no token was given.*Request access at .*org/name, then log in",
    ):
        listed("org/name")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(SourceError, match=r"gated: .*this token has no access") as got:
        listed("org/name")
    assert TOKEN not in f"{got.value}{got.value.details}"
    repo.granted = True
    (file,) = listed("org/name")
    assert read(file) == ["x"]
    repo.granted = False  # access can be taken away while a build runs
    with pytest.raises(SourceError, match=r"gated: "):
        read(file)


def test_a_token_that_is_not_accepted_is_named_by_where_it_is(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repo("org/name", {"train.jsonl": lines("x")})
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(SourceError, match=r"does not accept the token") as got:
        listed("org/name")
    assert "hf_expired" not in str(got.value)
    with pytest.raises(
        ConfigError, match=r"NOT_SET\} names an environment variable that is not set"
    ):
        listed("org/name", storage_options={"token": {"env": "NOT_SET"}})
    with pytest.raises(ConfigError, match=r"characters that tokens never have") as got:
        listed("org/name", storage_options={"token": "hf_a\nb"})
    assert "hf_a" not in str(got.value)
    with pytest.raises(ConfigError, match=r"anon: not an option of the Hub"):
        listed("org/name", storage_options={"anon": True})
    assert [
        file.path for file in listed("org/name", storage_options={"token": False})
    ] == ["train.jsonl"]
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match="requires a saved login, but there is none"):
        listed("org/name", storage_options={"token": True})


def test_a_commit_that_is_gone_is_an_input_that_changed(server: HubServer) -> None:
    repo = server.repo(
        "org/name", {"train.parquet": parquet("x"), "train.jsonl": lines("x")}
    )
    files = listed("org/name")
    repo.commits.clear()
    for file in files:
        with pytest.raises(
            InputChangedError, match=r"no longer exists on the Hub .*history rewritten"
        ):
            read(file)


def test_another_content_at_the_same_commit_is_an_input_that_changed(
    server: HubServer,
) -> None:
    repo = server.repo(
        "org/name", {"train.parquet": parquet("aa"), "train.jsonl": lines("aa")}
    )
    files = listed("org/name")
    repo.commits[repo.refs["main"]].update(
        {"train.parquet": parquet("bb"), "train.jsonl": lines("bb")}
    )
    for file in files:
        with pytest.raises(
            InputChangedError, match=r"its hash is [0-9a-f]+, planned was"
        ):
            read(file)
    repo.commits[repo.refs["main"]]["train.jsonl"] = lines("aa", "b")
    with pytest.raises(InputChangedError, match=r"the Hub sent 'bytes"):
        read(files[0])


# A network that has its days


@promise(245)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("", status=503, times=2), id="unavailable"),
        pytest.param(
            Fault("", status=429, headers={"Retry-After": "0"}), id="too many requests"
        ),
        pytest.param(
            Fault("", status=429, headers={"RateLimit": '"api";r=0;t=0'}),
            id="a limit is spent",
        ),
        pytest.param(Fault("/resolve/", cut=5, times=2), id="broken off while reading"),
        pytest.param(Fault("/tree/", cut=5), id="broken off while listing"),
    ],
)
def test_passing_faults_are_tried_again(server: HubServer, fault: Fault) -> None:
    server.repo("org/name", {"train.jsonl": lines("a", "b")})
    server.faults.append(fault)
    assert read_all("org/name") == ["a", "b"]
    assert fault.times == 0


def test_faults_that_do_not_pass_are_an_error(server: HubServer) -> None:
    server.repo("org/name", {"train.jsonl": lines("a")})
    server.faults.append(Fault("/tree/", status=503, times=99))
    with pytest.raises(
        SourceError,
        match=r"could not be reached or did not respond correctly, after 5 attempts \(status 503\)",
    ):
        listed("org/name")
    assert len(server.asked("/tree/")) == 5


def test_no_connection_is_an_error_that_says_so(server: HubServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(
            SourceError,
            match=r"Hub at http://127.*could not be reached.*Check the connection and HF_END",
        ):
            listed("org/name", storage_options={"endpoint": closed})


def test_offline_no_request_is_made(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repo("org/name", {"train.jsonl": lines("a")})
    (file,) = listed("org/name")
    server.seen.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        SourceError,
        match=r"'org/name': HF_HUB_OFFLINE .* is set, so no request was sent to the Hub",
    ):
        listed("org/name")
    with pytest.raises(SourceError, match=r"HF_HUB_OFFLINE"):
        read(file)
    assert not server.seen


def test_a_server_that_is_not_the_hub_is_an_error(server: HubServer) -> None:
    server.repo("org/name", {"train.jsonl": lines("a")})
    server.faults.append(Fault("/api/", status=200, times=1))
    with pytest.raises(SourceError, match=r"does not respond like the Hub"):
        listed("org/name")
    server.ranges = False
    with pytest.raises(SourceError, match=r"ignores requests for a part"):
        read_all("org/name")


# Reading


def test_a_large_file_is_read_in_few_requests_and_only_what_is_needed(
    server: HubServer,
) -> None:
    rows = [f"row {n} " + "x" * 200 for n in range(20_000)]
    sink = io.BytesIO()
    table = pa.table({"text": rows, "other": [f"{n} " * 100 for n in range(20_000)]})
    pq.write_table(table, sink, row_group_size=4000, compression="none")
    server.repo(
        "org/name",
        {
            "train.parquet": sink.getvalue(),
            "test.jsonl.gz": gzip.compress(lines(*rows), 1),
        },
    )
    (file,) = listed("org/name")
    server.seen.clear()
    assert read(file) == rows
    spans = [seen.range for seen in server.asked("/cdn/")]
    fetched = sum(
        int(b) - int(a) + 1 for a, b in (str(span)[6:].split("-") for span in spans)
    )
    assert fetched < 0.6 * file.size
    assert len(spans) < 40
    (file,) = listed("org/name", split="test")
    server.seen.clear()
    assert read(file) == rows
    assert len(server.asked("/cdn/")) < 6


def test_files_can_be_downloaded_first(server: HubServer, tmp_path: Path) -> None:
    repo = server.repo(
        "org/name", {"train.jsonl": lines("a"), "train.parquet": parquet("b")}
    )
    planned = listed("org/name")
    local = downloaded(planned, cache_dir=tmp_path)
    identity = [(file.path, file.token, file.file_id, file.format) for file in planned]
    assert [
        (file.path, file.token, file.file_id, file.format) for file in local
    ] == identity
    assert all(file.is_local for file in local)
    server.seen.clear()
    assert downloaded(planned, cache_dir=tmp_path) == local
    assert [text for file in local for text in read(file)] == ["a", "b"]
    assert not server.asked("/cdn/")
    Path(local[1].url).write_bytes(parquet("c"))
    with pytest.raises(
        DamagedFileError,
        match=r"its copy .* planned were .* delete the copy and run again",
    ):
        downloaded(planned, cache_dir=tmp_path)
    repo.commits.clear()
    with pytest.raises(SourceError, match=r"train.jsonl cannot be downloaded"):
        downloaded(planned, cache_dir=tmp_path / "other")


def test_a_download_carries_the_source_s_own_token(
    server: HubServer, tmp_path: Path
) -> None:
    server.repo("org/name", {"train.jsonl": lines("a")}, gated=True, granted=True)
    options = {"token": TOKEN, "endpoint": server.endpoint}
    planned = listed("org/name", storage_options=options)
    (local,) = downloaded(planned, options, tmp_path)
    assert read(local) == ["a"]
    # Where nobody has a token.
    with pytest.raises(SourceError, match=r"train.jsonl cannot be downloaded"):
        downloaded(planned, cache_dir=tmp_path / "other")


def test_a_client_keeps_its_token_out_of_its_own_words(server: HubServer) -> None:
    client = HubClient({"token": TOKEN})
    assert client.with_token
    assert TOKEN not in f"{client!r}"
    assert not HubClient().with_token


def test_a_whole_build_of_a_dataset_and_a_commit_that_changes_nothing(
    server: HubServer,
    tmp_path: Path,
    tokenizer_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    words = [f"document {n} of the Hub " * 9 for n in range(300)]
    files: dict[str, bytes | str] = {
        "data/train-00000-of-00002.parquet": parquet(*words[:200]),
        "data/train-00001-of-00002.parquet": parquet(*words[200:]),
        "data/test-00000-of-00001.parquet": parquet("not this"),
    }
    repo = server.repo("org/name", files, private=True)
    build = config_of(tmp_path, "org/name", tokenizer_dir, pack=32, type="hf")
    first = build_dataset(build, workers=1)
    assert first.manifest.account.documents == 300
    assert [entry.path for entry in first.manifest.inputs] == sorted(files)[1:]
    commit = repo.refs["main"]
    (run,) = (tmp_path / "store").glob("set/v1/runs/*Z-????????.json")
    assert json.loads(run.read_text())["hub_commits"] == {"s": {"org/name": commit}}
    everything = "".join(
        p.read_text()
        for p in (tmp_path / "store").rglob("*")
        if p.suffix in (".json", ".yaml", ".md")
    )
    assert TOKEN not in everything
    repo.commit(files | {"README.md": "# Now with a card"})
    again = build_dataset(build, workers=1)
    assert again.manifest == first.manifest
    (note,) = make_plan(resolve(load_config(build))).notes
    assert note == (
        f"s: dataset 'org/name', subset 'default', split 'train': 2 files of commit {repo.refs['main']} (main)"
    )
