"""Which files of a folder, a glob, a list and a mapping are read: by split and by
subset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.builds import config_of
from tokenlake import DatasetConfig, load_config
from tokenlake.config import dump_yaml
from tokenlake.errors import ConfigError
from tokenlake.etl.sources import layout, split_names

Names = Iterable[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def write(folder: Path, names: Names) -> Path:
    """Write files of one record each, whose text is the file's name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n")
    return folder


def read(data_files: Any, **options: Any) -> list[str]:
    """Return the names of the files that are read."""
    return sorted(
        row["text"] for row in tl.create_source({"data_files": data_files, **options})
    )


BOTH = ("test-0.jsonl", "train-0.jsonl", "train-1.jsonl")
TRAIN = ["train-0.jsonl", "train-1.jsonl"]


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        # The names of files, of folders, and of shards.
        (BOTH, {}, TRAIN),
        (BOTH, {"split": "train"}, TRAIN),
        (BOTH, {"split": "test"}, ["test-0.jsonl"]),
        (BOTH, {"dataset_split_name": "test"}, ["test-0.jsonl"]),
        (
            ("train/a.jsonl", "my-test/b/c.jsonl"),
            {"split": "test"},
            ["my-test/b/c.jsonl"],
        ),
        (
            ("en/train.jsonl", "en/val.jsonl", "de/train.jsonl"),
            {},
            ["de/train.jsonl", "en/train.jsonl"],
        ),
        (
            ("data/train-00000-of-00001.jsonl", "data/odd-00000-of-00001.jsonl"),
            {"split": "odd"},
            None,
        ),
        # Words that name a split, whichever of them is asked for.
        (("dev.jsonl", "training.jsonl"), {"split": "validation"}, ["dev.jsonl"]),
        (("dev.jsonl", "training.jsonl"), {"split": "val"}, ["dev.jsonl"]),
        (("dev.jsonl", "training.jsonl"), {}, ["training.jsonl"]),
        (("x_eval_2.jsonl", "x.train.jsonl"), {"split": "test"}, ["x_eval_2.jsonl"]),
        # Another word names a split where it is asked for.
        (("holdout.jsonl", "train.jsonl"), {"split": "holdout"}, ["holdout.jsonl"]),
        # What is in no split is left out where the split is written.
        (
            ("train.jsonl", "test.jsonl", "extra.jsonl"),
            {"split": "train"},
            ["train.jsonl"],
        ),
        # No name says a split: all files are train. A word inside of another one names
        # none.
        (
            ("a.jsonl", "contest.jsonl", "trainer.jsonl"),
            {},
            ["a.jsonl", "contest.jsonl", "trainer.jsonl"],
        ),
        (("a.jsonl", "b.jsonl"), {"split": "train"}, ["a.jsonl", "b.jsonl"]),
        (("data/part-00000-of-00001.jsonl",), {}, ["data/part-00000-of-00001.jsonl"]),
    ],
)
def test_a_folder_is_read_by_the_split_that_names_say(
    folder: Path, names: Names, options: dict[str, Any], expected: list[str] | None
) -> None:
    write(folder, names)
    if expected is None:
        expected = ["data/odd-00000-of-00001.jsonl"]
    assert read(str(folder), **options) == expected


@pytest.mark.parametrize(
    ("names", "options", "told"),
    [
        (
            BOTH,
            {"split": "nonsense"},
            r"no split 'nonsense'; .* it has train \(2 files\), test \(1 file\)",
        ),
        (BOTH, {"split": "tset"}, "did you mean 'test'"),
        (
            ("test-0.jsonl",),
            {},
            r"no split 'train'; .* it has test \(1 file\)\. Set `split` to one of test",
        ),
        (
            ("a.jsonl",),
            {"split": "validation"},
            "names a split, so all its files are the split 'train'",
        ),
        (
            ("train.jsonl", "a.jsonl"),
            {},
            r"and 1 file in no split \(a\.jsonl\).* Write `split: train`",
        ),
        (
            ("train_test.jsonl", "test.jsonl"),
            {},
            "'train_test.jsonl' contains two splits, train and test",
        ),
        (
            BOTH,
            {"subset": "en"},
            "no README.md whose `configs:` defines subsets; got subset 'en'",
        ),
        (
            ("en/a.jsonl",),
            {"subset": "en"},
            r"name the folder in data_files, .*/data/en, and leave",
        ),
        (
            BOTH,
            {"split": "train[:1]"},
            "a slice, .* write split: train and num_rows: 1",
        ),
        (BOTH, {"split": "train[10%:]"}, "a slice, .* num_rows reads the first rows"),
        (BOTH, {"split": "train[-2:]"}, "a slice"),
        (
            BOTH,
            {"split": "train+test"},
            "an entry of `datasets` for each of 'train' and 'test'",
        ),
        (BOTH, {"split": "all"}, "no split 'all'"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(
    folder: Path, names: Names, options: dict[str, Any], told: str
) -> None:
    write(folder, names)
    with pytest.raises(ConfigError, match=told):
        read(str(folder), **options)


@pytest.mark.parametrize(
    ("entries", "options", "expected"),
    [
        # Who names files has chosen them.
        (["test-0.jsonl"], {}, ["test-0.jsonl"]),
        (["test-*.jsonl"], {}, ["test-0.jsonl"]),
        (["*.jsonl"], {}, list(BOTH)),
        (["train-0.jsonl", "test-0.jsonl"], {}, ["test-0.jsonl", "train-0.jsonl"]),
        # A split that is written selects among them, too; a name that says none is of
        # train.
        (["*.jsonl"], {"split": "train"}, TRAIN),
        (["*.jsonl"], {"split": "test"}, ["test-0.jsonl"]),
        (["train-0.jsonl", "test-0.jsonl"], {"split": "test"}, ["test-0.jsonl"]),
        (["*.jsonl", "more/a.jsonl"], {"split": "train"}, ["more/a.jsonl", *TRAIN]),
        # The folder that they are in may be named after it.
        (["more/test/*.jsonl"], {"split": "test"}, ["more/test/b.jsonl"]),
        (["more/test"], {"split": "test"}, ["more/test/b.jsonl"]),
        (["more/test"], {}, ["more/test/b.jsonl"]),
    ],
)
def test_files_that_are_named_are_read_unless_a_split_is_written(
    folder: Path, entries: list[str], options: dict[str, Any], expected: list[str]
) -> None:
    write(folder, (*BOTH, "more/a.jsonl", "more/test/b.jsonl"))
    assert read([str(folder / entry) for entry in entries], **options) == expected


@pytest.mark.parametrize(
    ("entry", "options", "told"),
    [
        (
            "test-*.jsonl",
            {"split": "train"},
            r"it has test \(1 file\).* leave `split` out",
        ),
        (
            "*.jsonl",
            {"split": "validation"},
            r"it has train \(2 files\), test \(1 file\)",
        ),
        (
            "*.jsonl",
            {"subset": "en"},
            "files listed one by one or matched by a glob have no subsets",
        ),
        ("train-0.jsonl", {"split": "train[:1]"}, "a slice"),
    ],
)
def test_a_split_that_named_files_lack_is_refused(
    folder: Path, entry: str, options: dict[str, Any], told: str
) -> None:
    write(folder, BOTH)
    with pytest.raises(ConfigError, match=told):
        read(str(folder / entry), **options)


def test_a_mapping_names_the_files_of_each_split(folder: Path) -> None:
    write(folder, (*BOTH, "more/a.jsonl", "more/b.jsonl"))
    files = {
        "train": f"{folder}/train-*.jsonl",
        "test": [f"{folder}/test-0.jsonl", f"{folder}/more"],
    }
    assert read(files) == TRAIN
    assert read(files, split="test") == ["more/a.jsonl", "more/b.jsonl", "test-0.jsonl"]
    # Whatever the names of named files say; of a folder of several splits, those of its
    # own.
    assert read({"validation": f"{folder}/test-0.jsonl"}, split="validation") == [
        "test-0.jsonl"
    ]
    assert read({"train": str(folder), "test": f"{folder}/more"}, split="test") == [
        "more/a.jsonl",
        "more/b.jsonl",
    ]
    (folder / "more").rename(folder.parent / "more")
    both = {"train": str(folder), "test": str(folder)}
    assert (read(both), read(both, split="test")) == (TRAIN, ["test-0.jsonl"])
    with pytest.raises(ConfigError, match=r"no split 'validation'; .* it has train"):
        read({"validation": str(folder)}, split="validation")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"split": "dev"},
            "got split 'dev', but data_files has train, test; set `split` to one of them",
        ),
        ({"split": "tran"}, "did you mean 'train'"),
        ({"type": "hf"}, "a dataset on the Hub has its own splits"),
        ({"subset": "en"}, "files by split have no subsets"),
    ],
)
def test_a_mapping_without_the_split_is_refused(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(
            {"datasets": [{"data_files": {"train": "a", "test": "b"}, **options}]}
        )


def card(*entries: str) -> str:
    return "---\nlicense: mit\nconfigs:\n" + "".join(entries) + "---\n# A dataset\n"


def test_a_card_beside_the_files_names_subsets_and_splits(folder: Path) -> None:
    write(
        folder,
        ("en/1.jsonl", "en/2.jsonl", "de/train.jsonl", "de/test.jsonl", "other.jsonl"),
    )
    (folder / "README.md").write_text(
        card(
            "- config_name: en\n  data_files: en/*.jsonl\n  default: true\n",
            "- config_name: de\n  data_dir: de\n",
        )
    )
    assert read(str(folder)) == ["en/1.jsonl", "en/2.jsonl"]
    assert read(str(folder), subset="de", split="test") == ["de/test.jsonl"]
    with pytest.raises(
        ConfigError, match=r"no subset 'fr'; by its README.md it has en, de"
    ):
        read(str(folder), subset="fr")
    with pytest.raises(
        ConfigError, match=r"no split 'test'; by its README.md it has train \(2 files\)"
    ):
        read(str(folder), split="test")
    found = tl.inspect(folder)
    assert (found.configs, [split.name for split in found.splits]) == (
        ("en", "de"),
        ["train"],
    )
    assert found.groups[0].entry is not None
    assert found.groups[0].entry["subset"] == "en"
    (folder / "README.md").write_text("---\nconfigs: 3\n---\n")
    with pytest.raises(
        ConfigError, match=rf"the card \(README.md\) cannot be used: .*{folder}/PATTERN"
    ):
        read(str(folder))


def test_a_split_that_nobody_wrote_stays_unwritten_in_a_dump(folder: Path) -> None:
    write(folder, BOTH)
    for options, expected in (({}, list(BOTH)), ({"split": "train"}, TRAIN)):
        config = load_config(
            {"name": "x", "datasets": [{"data_files": f"{folder}/*.jsonl", **options}]}
        )
        (folder.parent / "again.yaml").write_text(dump_yaml(config))
        again = load_config(folder.parent / "again.yaml")
        assert again == config
        assert again.datasets[0].split == "train"
        for dataset in (config.datasets[0], again.datasets[0]):
            assert sorted(row["text"] for row in tl.create_source(dataset)) == expected
    assert DatasetConfig(data_files="x").model_dump()["subset"] is None


def test_a_build_reads_one_split_and_its_result_says_which_it_left(
    folder: Path, tokenizer_dir: Path
) -> None:
    write(folder, BOTH)
    here = folder.parent
    plan = tl.plan(config_of(here, folder, tokenizer_dir))
    assert [file.path for file in plan.inputs] == TRAIN
    (note,) = plan.left_out
    assert note.endswith("split 'train', 2 files; not read: test (1 file)")
    assert note in plan.notes
    by_mapping = config_of(here, "x", tokenizer_dir)
    by_mapping["datasets"][0]["data_files"] = {
        "train": f"{folder}/train-*.jsonl",
        "test": str(folder),
    }
    again = tl.plan(by_mapping)
    assert (again.fingerprint, again.left_out) == (plan.fingerprint, ())
    # A glob over several splits reads them all, and says so.
    named = tl.plan(config_of(here, folder / "*.jsonl", tokenizer_dir))
    assert [file.path for file in named.inputs] == list(BOTH)
    assert (
        "all its files are read, regardless of their splits: train (2 files), test (1 file)"
        in named.left_out[0]
    )
    assert (
        tl.plan(config_of(here, folder / "train-*.jsonl", tokenizer_dir)).left_out == ()
    )
    with pytest.raises(ConfigError, match="no split 'dev'"):
        tl.plan(config_of(here, folder, tokenizer_dir, split="dev"))


def test_every_road_reads_the_same_split(folder: Path, tokenizer_dir: Path) -> None:
    write(folder, BOTH)
    for split, expected in (("train", 2), ("test", 1)):
        dataset = {
            "name": "d",
            "data_files": str(folder),
            "split": split,
            "tokenizer": str(tokenizer_dir),
        }
        rows = (
            tl.Pipeline.from_config({"datasets": [dataset]}).source().tokenize().build()
        )
        assert len(list(rows)) == expected
        stats = tl.tokenize_and_save(
            str(folder),
            str(tokenizer_dir),
            str(folder.parent / split),
            split=split,
            workers=1,
        )
        assert stats.num_examples == expected
        inform = tl.TextDatasetInform(
            data_files=str(folder), split=split, content_field="text"
        )
        assert len(list(inform.open("text"))) == expected


FOLDERS = ["", "data/", "train/", "my-test/x/", "a/b/", "a/validation 1/"]
STEMS = [
    "train",
    "test-1",
    "Train",
    "dev",
    "x.eval",
    "trainer",
    "contest",
    "x",
    "my_training",
    "1test",
]


@settings(max_examples=150)
@given(
    st.sets(
        st.builds(str.__add__, st.sampled_from(FOLDERS), st.sampled_from(STEMS)),
        min_size=1,
        max_size=6,
    )
)
def test_each_file_of_a_folder_is_in_a_split_or_in_none(stems: set[str]) -> None:
    """The splits are those of patterns that the Hub's rules write down, and no path
    gets lost.
    """
    paths = sorted(f"{stem}.csv" for stem in stems)
    splits = split_names.splits_named(paths)
    left_over = set(layout.in_no_split(paths, splits))
    assert left_over.isdisjoint({path for files in splits.values() for path in files})
    assert left_over | {path for files in splits.values() for path in files} == set(
        paths
    )
    by_pattern: dict[str, list[str]] = {}
    for templates in (
        (
            "**/{word}/**",
            "**/{word}[{sep}]*/**",
            "**/*[{sep}]{word}/**",
            "**/*[{sep}]{word}[{sep}]*/**",
        ),
        ("**/{word}[{sep}]*", "**/*[{sep}]{word}[{sep}]*"),
    ):
        for split, words in split_names.KEYWORDS.items():
            patterns = [
                each.format(word=word, sep="-._ 0-9")
                for word in words
                for each in templates
            ]
            if found := sorted(
                {
                    path
                    for pattern in patterns
                    for path in layout.matches(pattern, paths)
                }
            ):
                by_pattern[split] = found
        if by_pattern:
            break
    assert splits == by_pattern
