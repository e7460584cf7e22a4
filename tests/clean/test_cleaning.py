"""Cleaning through its door: what is left out and why, the account, the same bytes
whatever happens, and the build.
"""

from __future__ import annotations

import importlib
import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.etl.outputs_support import build_here, kill_once, write_jsonl
from tests.etl.remote_builds_support import bucket
from tests.servers.s3 import KEY, SECRET
from tokenlake import clean_dataset, load_config
from tokenlake.cli.app import main
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.etl import InProcessPool, Workbench
from tokenlake.etl.clean import CleanResult

Config = dict[str, Any]
BENCH = Workbench()


def prose(seed: int, words: int = 120) -> str:
    draw = random.Random(seed)
    return " ".join(
        f"{draw.choice('abcdefgh')}{draw.randrange(4000)}" for _ in range(words)
    )


def changed(text: str, *places: int) -> str:
    words = text.split()
    for place in places:
        words[place] = f"other{place}"
    return " ".join(words)


def config_of(root: Path, sources: dict[str, Sequence[str]], **clean: Any) -> Config:
    for name, texts in sources.items():
        write_jsonl(root / "in" / f"{name}.jsonl", [{"text": text} for text in texts])
    return {
        "name": "set",
        "datasets": [
            {"name": name, "data_files": str(root / "in" / f"{name}.jsonl")}
            for name in sources
        ],
        "save": {"output_dir": str(root / "store")},
        "clean": {"output": str(root / "list.parquet"), **clean},
    }


def run(config: Config) -> CleanResult:
    pool: Any = InProcessPool(BENCH)
    return clean_dataset(config, pool=pool)


def rows(config: Config) -> list[dict[str, Any]]:
    return pq.read_table(config["clean"]["output"]).to_pylist()


def numbers(config: Config, source: str) -> dict[int, str]:
    """Number of the document in its file to the reason for which it is left out."""
    [path] = [
        each["data_files"] for each in config["datasets"] if each["name"] == source
    ]
    starts, at = {}, 0
    for number, line in enumerate(Path(path).read_bytes().splitlines(keepends=True)):
        starts[at], at = number, at + len(line)
    return {
        starts[row["position"]]: row["reason"]
        for row in rows(config)
        if row["source"] == source
    }


def test_the_first_of_equal_and_of_near_documents_stays(tmp_path: Path) -> None:
    one, two = prose(1), prose(2)
    config = config_of(
        tmp_path,
        {
            "b": [one, two, f"  {one.upper()}\n", changed(two, 7), "short", "Short"],
            "a": [
                prose(3),
                changed(one, 50),
                two,
                changed(prose(3), *range(0, 120, 4)),
            ],
        },
    )
    result = run(config)
    assert numbers(config, "b") == {2: "duplicate", 3: "near_duplicate", 5: "duplicate"}
    assert numbers(config, "a") == {1: "near_duplicate", 2: "duplicate"}
    first = {row["source"]: row for row in reversed(rows(config))}
    assert (first["b"]["kept_position"], first["a"]["path"]) == (0, "a.jsonl")
    assert first["a"]["kept_file"] == first["b"]["kept_file"] == first["b"]["file"]
    assert (result.account.rows_read, result.account.kept) == (10, 5)
    assert result.account.filtered == {"duplicate": 3, "near_duplicate": 2}
    assert result.to_json()["sources"]["a"]["removed"] == {
        "duplicate": 1,
        "near_duplicate": 1,
    }


def test_what_is_looked_for_can_be_chosen(tmp_path: Path) -> None:
    sources = {"a": ["x y", "X  y", "x y", changed(prose(1), 3), prose(1)]}
    wanted: list[tuple[Config, dict[int, str]]] = [
        ({"exact": "text", "minhash": {"enabled": False}}, {2: "duplicate"}),
        (
            {"exact": "none", "minhash": {"ngram": 2}},
            dict.fromkeys((1, 2, 4), "near_duplicate"),
        ),
        ({"exact": "none", "minhash": {"bands": 1, "rows": 200}}, {}),
        ({"exact": "none", "minhash": {"enabled": False}}, {}),
    ]
    for clean, left_out in wanted:
        config = config_of(tmp_path, sources, **clean)
        run(config)
        assert numbers(config, "a") == left_out, clean


def test_filters_and_evaluation_sets_come_first_and_give_the_reason(
    tmp_path: Path,
) -> None:
    good = "The cat sat on the mat, and that is all there is to say of it to you. " * 4
    leak = f"intro {prose(5, 13)} outro"
    write_jsonl(
        tmp_path / "exam.jsonl", [{"question": prose(5, 20)}, {"question": "too short"}]
    )
    exam = {
        "name": "exam",
        "data_files": str(tmp_path / "exam.jsonl"),
        "content_field": "question",
    }
    config = config_of(
        tmp_path,
        {"a": ["bad", good, leak, good, "bad", prose(5, 12)]},
        filters=[
            {
                "gopher_quality": {
                    "min_words": 10,
                    "min_stop_words": 0,
                    "max_word_length": 90,
                    "min_word_length": 0,
                }
            }
        ],
        contamination={"sets": [exam]},
    )
    result = run(config)
    few = "gopher_quality.few_words"
    assert numbers(config, "a") == {
        0: few,
        2: "contamination.exam",
        3: "duplicate",
        4: few,
    }
    assert result.sets == {"exam": {"documents": 2, "too_short": 1, "ngrams": 8}}
    assert "1 of 2 documents have fewer words" in result.notes[0]
    config["clean"]["contamination"] |= {"min_fraction": 0.9}
    assert run(config).account.filtered == {few: 2, "duplicate": 1, "near_duplicate": 1}


def test_an_earlier_list_is_an_index_and_what_it_kept_stays(tmp_path: Path) -> None:
    old = [prose(1), prose(1), prose(2), changed(prose(2), 60)]
    first = config_of(tmp_path, {"old": old}, output=str(tmp_path / "first.parquet"))
    run(first)
    # The new source comes first now, and still it is its documents that are left out.
    config = config_of(
        tmp_path,
        {"new": [prose(3), prose(1), changed(prose(2), 61)], "old": old},
        against=[str(tmp_path / "first.parquet")],
    )
    result = run(config)
    assert (result.units_made, result.units_found) == (1, 1)
    assert numbers(config, "new") == {1: "duplicate", 2: "near_duplicate"}
    assert numbers(config, "old") == {1: "duplicate", 3: "near_duplicate"}
    config["clean"]["against"] = []
    run(config)
    assert numbers(config, "old") == {
        0: "duplicate",
        1: "duplicate",
        2: "near_duplicate",
        3: "near_duplicate",
    }
    assert numbers(config, "new") == {}


def corpus(root: Path, **clean: Any) -> Config:
    draw, texts = random.Random(0), [prose(seed) for seed in range(40)]
    texts += [
        changed(draw.choice(texts), draw.randrange(120)) for _ in range(30)
    ] + draw.sample(texts, 10)
    draw.shuffle(texts)
    config = config_of(root, {"a": texts[:50], "b": texts[50:]}, **clean)
    return config | {"source": {"unit_size": "8KB"}}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    config = corpus(tmp_path_factory.mktemp("reference"))
    assert run(config).units_made > 5
    return Path(config["clean"]["output"]).read_bytes()


def test_the_list_has_the_same_bytes_with_any_workers_and_any_memory(
    tmp_path: Path, reference: bytes
) -> None:
    for workers, memory in ((2, "1KB"), (1, "1GB")):
        config = corpus(tmp_path / str(workers), memory=memory)
        assert clean_dataset(config, workers=workers).units_made > 5
        assert Path(config["clean"]["output"]).read_bytes() == reference


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, reference: bytes
) -> None:
    config, made = corpus(tmp_path), tmp_path / "store" / ".clean"
    script = "import json, sys, tokenlake; tokenlake.clean_dataset(json.loads(sys.argv[1]), workers=2)"
    for _ in range(20):
        kill_once(lambda: any(made.rglob("*.parquet")), script, config)
        if not Path(config["clean"]["output"]).exists():
            break
        shutil.rmtree(made)  # the run ended before it was killed
        Path(config["clean"]["output"]).unlink()
    finished = {path: path.stat().st_ino for path in made.rglob("*.parquet")}
    assert finished
    result = run(config)
    assert result.units_found == len(finished)
    assert {path: path.stat().st_ino for path in finished} == finished
    assert Path(config["clean"]["output"]).read_bytes() == reference


def test_a_build_takes_the_list_by_exclude(tmp_path: Path, tokenizer_dir: Path) -> None:
    texts = [prose(1, 30), prose(2, 30), prose(1, 30), changed(prose(2, 30), 29)]
    config = config_of(tmp_path, {"a": texts, "b": [prose(2, 30), prose(3, 30)]})
    for dataset in config["datasets"]:
        dataset["exclude"] = config["clean"]["output"]
    cleaned = run(config)
    assert cleaned.account.filtered == {"duplicate": 2, "near_duplicate": 1}
    build = {**config, "default_tokenizer": str(tokenizer_dir), "clean": {}}
    built = build_here(build)
    assert {name: each.filtered for name, each in built.manifest.accounts.items()} == {
        "a": {"excluded": 2},
        "b": {"excluded": 1},
    }
    assert len(built.rows()) == cleaned.account.kept
    # Section `clean` is no part of a version's identity.
    assert (
        build_here({**build, "clean": config["clean"]}).manifest.version
        == built.manifest.version
    )


def test_a_list_of_the_users_own_is_taken_over(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"a": [prose(1), prose(2), prose(1)]})
    own = tmp_path / "takedown.parquet"
    pq.write_table(pa.table({"file": ["a.jsonl"], "position": [0]}), own)
    config["datasets"][0]["exclude"] = str(own)
    run(config)
    assert numbers(config, "a") == {0: "excluded"}
    config["clean"]["output"] = str(own)
    config["datasets"][0]["exclude"] = None
    with pytest.raises(
        ConfigError,
        match=r"takedown.parquet exists, but `tokenlake clean` did not write it",
    ):
        run(config)


def test_rows_are_accounted_whatever_becomes_of_them(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"a": []})
    lines = [
        {"text": "keep this", "n": 1},
        {"text": "not me", "n": 2},
        {"text": None, "n": 1},
        {"n": 1},
    ]
    write_jsonl(tmp_path / "in" / "a.jsonl", [*lines, {"text": "Keep  THIS", "n": 1}])
    config["datasets"][0] |= {
        "where": "n = 1",
        "on_bad_record": "quarantine",
        "max_bad_fraction": 1.0,
    }
    account = run(config).account
    assert (account.rows_read, account.kept, account.filtered) == (
        5,
        1,
        {"where": 1, "duplicate": 1},
    )
    assert sum(account.quarantined.values()) == 2


def test_a_row_of_several_documents_is_left_out_whole(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"a": ["one two", "two", "one two"]})
    config["datasets"][0]["transforms"] = [
        {"apply": "tests.clean.test_cleaning:words_as_rows"}
    ]
    account = run(config).account
    assert (account.rows_read, account.kept, account.filtered) == (
        3,
        2,
        {"duplicate": 1},
    )
    assert numbers(config, "a") == {2: "duplicate"}


def words_as_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each word."""
    return [{"text": word} for word in row["text"].split()]


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"a": [prose(1)]})
    run(config)
    earlier = config["clean"]["output"]
    other = config_of(
        tmp_path,
        {"a": [prose(1)]},
        output=str(tmp_path / "x.parquet"),
        against=[earlier],
    )
    with pytest.raises(
        ConfigError,
        match=r"made with rows 8, and this run has 4; .* Give both runs the same",
    ):
        run({**other, "clean": other["clean"] | {"minhash": {"rows": 4}}})
    with pytest.raises(
        ConfigError, match=r"datasets.a.chat: `clean` reads the text of one field"
    ):
        run({**other, "datasets": [other["datasets"][0] | {"chat": {}}]})
    with pytest.raises(
        ConfigError,
        match=r"all of them are datasets of the store, which contains no texts",
    ):
        run({**other, "datasets": [{"name": "a", "dataset": "set"}]})
    with pytest.raises(
        ConfigError, match=r"clean.contamination: sets.0: name is missing"
    ):
        run({**other, "clean": {"contamination": {"sets": [{"data_files": "x"}]}}})
    [signatures] = (tmp_path / "store" / ".clean").rglob("*.parquet")
    signatures.chmod(0o600)
    signatures.write_bytes(signatures.read_bytes()[:-9])
    with pytest.raises(
        IntegrityError,
        match=r"the signatures are damaged: .* Remove the file and run `clean` again",
    ):
        run(config)
    signatures.unlink()
    with pytest.raises(
        NotFoundError,
        match=r"these signatures are not in the store .* Run `clean` again",
    ):
        run(
            {
                **other,
                "datasets": [
                    {"name": "b", "data_files": other["datasets"][0]["data_files"]}
                ],
            }
        )


def test_the_command_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, {"a": ["one two", "One  two", "three"]})
    path = tmp_path / "set.yaml"
    path.write_text(json.dumps(config))
    run(config)
    assert main(["clean", str(path)]) == 0
    printed = capsys.readouterr()
    assert "1 document to leave out; 2 of 3 rows kept" in printed.out
    assert re.search(r"duplicate +1 +33\.33%", printed.out)
    assert re.search(
        r"next: write `exclude: \S+` under a of `datasets`, then `tokenlake run \S+set.yaml`",
        printed.err,
    )
    assert main(["clean", str(path), "--json", "--set", "clean.exact=none"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kept"], told["removed"], told["units_found"]) == (3, {}, 1)


def test_a_deployments_run_reads_and_writes_where_the_worker_allows(
    tmp_path: Path,
) -> None:
    pytest.importorskip("prefect")
    check: Any = importlib.import_module("tokenlake.runs.policy").check_cleaning
    exam = {"name": "exam", "data_files": "/exams/a.jsonl"}
    clean = {"against": ["/lists/old.parquet"], "contamination": {"sets": [exam]}}
    config = load_config(
        {
            "name": "set",
            "datasets": [{"name": "a", "data_files": "/data/a.jsonl"}],
            "save": {"output_dir": "/lists/store"},
            "clean": {"output": "/lists/new.parquet"} | clean,
        }
    )
    allowed = {
        "TOKENLAKE_ALLOWED_INPUTS": "/data:/exams",
        "TOKENLAKE_ALLOWED_OUTPUTS": "/lists",
    }
    check(config, allowed)
    for variable, folder, told in (
        ("TOKENLAKE_ALLOWED_INPUTS", "/data", "data_files of 'exam'"),
        ("TOKENLAKE_ALLOWED_INPUTS", "/exams", "data_files of 'a'"),
        (
            "TOKENLAKE_ALLOWED_OUTPUTS",
            "/lists/store",
            "a list of documents to leave out",
        ),
    ):
        with pytest.raises(
            ConfigError,
            match=f"{told}: .* is outside the places that this worker allows",
        ):
            check(config, allowed | {variable: folder})


def test_the_page_of_a_run_has_the_account(tmp_path: Path) -> None:
    pytest.importorskip("prefect")
    page: Any = importlib.import_module("tokenlake_tasks.clean").account_page
    told = page(run(config_of(tmp_path, {"a": ["one two", "One  two", "three"]})))
    assert "2 of 3 rows kept" in told and "| duplicate | 1 |" in told


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_signatures_in_a_bucket_are_those_of_a_folder(
    scheme: str, tmp_path: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    config = corpus(tmp_path)
    with bucket(scheme) as lake:
        where = lake.address("cleaned")  # a server's objects outlive it in this process
        config["save"] = {
            "output_dir": where.url,
            "storage_options": dict(where.options),
        }
        made = run(config).units_made
        assert Path(config["clean"]["output"]).read_bytes() == reference
        assert (run(config).units_made, len(lake.everything("cleaned"))) == (0, made)


def test_of_a_folder_the_train_split_is_cleaned_and_every_split_of_an_evaluation_set(
    tmp_path: Path,
) -> None:
    config = config_of(
        tmp_path, {"train-a": [prose(1), prose(2)], "test-a": [prose(3)]}
    )
    config["datasets"] = [{"name": "web", "data_files": str(tmp_path / "in")}]
    write_jsonl(tmp_path / "exam" / "test.jsonl", [{"text": prose(2)}])
    exam = {"name": "exam", "data_files": str(tmp_path / "exam")}
    config["clean"]["contamination"] = {"sets": [exam]}
    result = run(config)
    assert result.notes == (
        f"web: {tmp_path}/in: split 'train', 1 file; not read: test (1 file)",
    )
    assert [row["reason"] for row in rows(config)] == ["contamination.exam"]
    exam["split"] = "train"
    with pytest.raises(
        ConfigError, match=r"no split 'train'; .* it has test \(1 file\)"
    ):
        run(config)
