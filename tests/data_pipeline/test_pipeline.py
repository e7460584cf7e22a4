"""`DataPipeline`: the quick start, every key of its file, splits, streams,
processes, threads, and builds.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.hub_support import writable_hub
from tests.lazily import lazily
from tests.seeds import promise
from tests.servers.hub import HubServer
from tests.text.chat_samples import MARKED_CHATML, speaking, write
from tests.tokenizers.tokenizer_samples import save, sentencepiece
from tokenlake import load_config
from tokenlake.cli.app import main
from tokenlake.data_pipeline import DataPipeline
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset

torch: Any = lazily("torch")

# Workers are forked from a process where other tests have left threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "data_module.md").read_text()
(YAML,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
QA = {"template": "Q: {q}\nA: {a}", "input_columns": ["q"], "label_column": "a"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two splits of rows, and a tokenizer, in a folder."""
    for split, count in (("train", 10), ("test", 3)):
        rows = [{"q": f"what {n}", "a": f"answer {n}", "id": n} for n in range(count)]
        (tmp_path / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    save(sentencepiece(), tmp_path / "tokenizer")
    return tmp_path


def config(files: Path, **sections: Any) -> dict[str, Any]:
    """A data module over the files; `dataset`, `tokenizer` and `dataloader` are
    added to their sections.
    """
    dataset = {
        "name": f"{files}/{{split}}.jsonl",
        "splits": ["train", "test"],
        **sections.pop("dataset", {}),
    }
    tokenizer = {
        "name_or_path": str(files / "tokenizer"),
        "max_length": 32,
        **sections.pop("tokenizer", {}),
    }
    loader = {"batch_size": 4, **sections.pop("dataloader", {})}
    given = {"dataset": dataset, "tokenizer": tokenizer, "dataloader": loader}
    return {"type": "data_module", "prompt_template": QA, **given, **sections}


def opened(files: Path, **sections: Any) -> DataPipeline:
    return DataPipeline.from_config(config(files, **sections)).unwrap()


def learned(pipeline: DataPipeline, batches: Any) -> list[str]:
    """Return the text of what is learned in each row."""
    rows = [row[row != -100].tolist() for batch in batches for row in batch["labels"]]
    return [
        pipeline.tokenizer.decode(ids).unwrap().replace("</s>", "").strip()
        for ids in rows
    ]


@promise(105, 106, 107, 108)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_quick_start_runs_as_it_is_printed(
    server: HubServer,
    shared_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    rows = [
        {"instruction": f"Do {n}.", "input": "", "output": f"Done {n}.", "text": ""}
        for n in range(8)
    ]
    server.repo(
        "tatsu-lab/alpaca",
        {"data/train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)},
    )
    monkeypatch.setenv("HF_HOME", str(shared_data / "hf"))
    monkeypatch.chdir(tmp_path)
    Path("pipeline_config.yaml").write_text(YAML)
    exec(CODE, {})
    assert capsys.readouterr().out == "torch.Size([4, 2048])\n" * 2
    loaded = load_config("pipeline_config.yaml")
    assert (loaded.name, loaded.datasets[0].type) == ("pipeline_config", "hf")


@promise(111, 289)
def test_every_problem_of_a_file_is_told_with_its_line_and_what_was_meant(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "type: data_module\nversion: '1.0'\ndataset: {nam: x}\ntokenizer: t\ndatalader: {}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for error in (DataPipeline.from_config(path).unwrap_err(), caught.value):
        assert "dataset.nam (line 3): unknown key; did you mean 'name'?" in str(error)
        assert "datalader (line 5): unknown key; did you mean 'dataloader'?" in str(
            error
        )
    loaded = DataPipeline({"dataset": {"name": "a/b"}, "tokenizer": "t"}).config
    with pytest.raises(ValueError, match="frozen"):
        loaded.version = "2"  # pyright: ignore[reportAttributeAccessIssue]


@promise(289, 290)
def test_the_keys_of_the_dataset_become_those_of_a_pipeline() -> None:
    made = load_config(
        {
            "type": "data_module",
            "dataset": {
                "name": "org/name",
                "config_name": "en",
                "streaming": True,
                "columns": ["Q", "a"],
                "column_mapping": {"q": "Q"},
                "splits": ["train", {"name": "test", "sample_size": 7}],
            },
            "tokenizer": "t",
            "prompt_template": {**QA, "input_columns": []},
        }
    )
    first, second = made.datasets
    assert (first.data_files, first.type, first.subset, first.split) == (
        "org/name",
        "hf",
        "en",
        "train",
    )
    assert (first.format_fields, made.streaming, made.pack.enabled) == (
        {"Q": "q"},
        True,
        False,
    )
    assert (second.name, second.split, second.num_rows, second.splits) == (
        "test",
        "test",
        7,
        {"test": 1.0},
    )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"dataset": {"stages": ["fim"]}}, "'fim' is not available"),
        ({"dataset": {"stages": ["ppo"]}}, "'ppo' is not available"),
        ({"dataset": {"columns": ["q"]}}, "'a' missing, but prompt_template uses them"),
        ({"dataset": {"name": "x.jsonl"}}, "would all be the rows of the same files"),
        ({"dataloader": {"prefetch_factor": 2}}, "num_workers is 0"),
        ({"output_schema": {"input_ids": "float"}}, "input_ids"),
    ],
)
@promise(303)
def test_what_cannot_be_is_refused_by_name(
    files: Path, section: dict[str, Any], words: str
) -> None:
    error = DataPipeline.from_config(config(files, **section)).unwrap_err()
    assert isinstance(error, ConfigError) and words in str(error)


def test_a_build_refuses_a_sample_that_only_a_loader_draws(files: Path) -> None:
    drawn = config(
        files,
        dataset={"splits": [{"name": "train", "sample_size": 3, "shuffle": True}]},
    )
    with pytest.raises(ConfigError, match="a build takes the first sample_size rows"):
        load_config(drawn)


@promise(290, 126)
def test_splits_are_taken_whole_or_in_part_in_an_order_that_a_seed_decides(
    files: Path,
) -> None:
    spec = {"name": "train", "sample_size": 4, "shuffle": True, "seed": 1}
    found = [opened(files, dataset={"splits": [spec]}) for _ in range(2)]
    first, again = (learned(each, each.get_dataloader().unwrap()) for each in found)
    assert first == again != [f"answer {n}" for n in range(4)]
    assert len(first) == 4
    whole = opened(files)
    assert learned(whole, whole.get_dataloader("test").unwrap()) == [
        f"answer {n}" for n in range(3)
    ]
    assert "did you mean 'train'?" in str(whole.get_dataloader("tran").unwrap_err())


def test_a_folder_has_the_splits_that_the_names_of_its_files_say(files: Path) -> None:
    whole = opened(files, dataset={"name": str(files)})
    assert learned(whole, whole.get_dataloader("test").unwrap()) == [
        f"answer {n}" for n in range(3)
    ]
    assert len(learned(whole, whole.get_dataloader("train").unwrap())) == 10
    absent = opened(
        files, dataset={"name": str(files), "splits": ["train", "validation"]}
    )
    assert "it has train (1 file), test (1 file)" in str(
        absent.get_dataloader("validation").unwrap_err()
    )
    # One file is what its split is called.
    one = opened(
        files, dataset={"name": f"{files}/test.jsonl", "splits": ["validation"]}
    )
    assert len(learned(one, one.get_dataloader("validation").unwrap())) == 3


@promise(294, 126)
def test_the_options_of_the_data_loader_are_pytorchs(files: Path) -> None:
    options = {
        "num_workers": 1,
        "pin_memory": False,
        "persistent_workers": True,
        "prefetch_factor": 3,
    }
    pipeline = opened(
        files,
        dataloader={**options, "shuffle": True, "drop_last": True, "batch_size": 4},
    )
    loader = pipeline.get_dataloader().unwrap()
    assert {name: getattr(loader, name) for name in options} == options
    epochs = [learned(pipeline, loader) for _ in range(2)]
    assert [len(rows) for rows in epochs] == [8, 8]
    assert epochs[0] != epochs[1]
    other = opened(files, dataloader={"shuffle": True, "drop_last": True})
    assert learned(other, other.get_dataloader().unwrap()) == epochs[0]
    assert [
        len(batch["labels"])
        for batch in pipeline.get_dataloader("test", batch_size=1).unwrap()
    ] == [1] * 3


@promise(291, 120)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_are_cut_and_padded_as_the_tokenizers_section_says(
    files: Path, side: str
) -> None:
    made = opened(files, tokenizer={"max_length": 48, "padding_side": side})
    (batch,) = made.get_dataloader("test").unwrap()
    assert batch["input_ids"].shape == (3, 48)
    mask = batch["attention_mask"]
    assert (mask[:, 0] == (side == "right")).all() and (
        mask[:, -1] == (side == "left")
    ).all()
    assert (batch["labels"][mask == 0] == -100).all()
    short = opened(files, tokenizer={"max_length": 48, "padding": "longest"})
    assert (
        next(iter(short.get_dataloader("test").unwrap()))["input_ids"].shape[1]
        == mask.sum(1).max()
    )
    strict = opened(files, tokenizer={"max_length": 4, "truncation": False})
    with pytest.raises(Exception, match=r"row 0: the prompt has .* truncation is off"):
        next(iter(strict.get_dataloader("test").unwrap()))


@promise(292)
def test_special_tokens_take_the_place_of_the_tokenizers_own(files: Path) -> None:
    made = opened(files, tokenizer={"special_tokens": {"pad_token": "<unk>"}})
    (batch,) = made.get_dataloader("test").unwrap()
    assert made.tokenizer.pad_token_id == 0
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    wrong = (
        opened(files, tokenizer={"special_tokens": {"pad_token": "<unkk>"}})
        .get_dataloader()
        .unwrap_err()
    )
    assert (
        "special_tokens.pad_token is '<unkk>', expected a token of its vocabulary; did you mean '<unk>'"
        in str(wrong)
    )


@promise(295)
def test_the_output_schema_says_which_tensors_there_are_and_of_which_types(
    files: Path,
) -> None:
    made = opened(files, output_schema={"input_ids": "int32", "labels": "int64"})
    (batch,) = made.get_dataloader("test").unwrap()
    assert {name: values.dtype for name, values in batch.items()} == {
        "input_ids": torch.int32,
        "labels": torch.int64,
    }


@promise(125, 306)
def test_a_stream_is_shared_among_workers_and_shuffled_in_a_buffer(files: Path) -> None:
    pipeline = opened(
        files,
        dataset={"streaming": True},
        dataloader={"num_workers": 2, "batch_size": 3},
    )
    assert isinstance(pipeline.get_dataset().unwrap(), torch.utils.data.IterableDataset)
    expected = [f"answer {n}" for n in range(10)]
    assert sorted(learned(pipeline, pipeline.get_dataloader().unwrap())) == expected
    single = opened(files, dataset={"streaming": True})
    assert learned(single, single.get_dataloader().unwrap()) == expected
    mixed = learned(single, single.get_dataloader(shuffle=True).unwrap())
    assert mixed != expected and sorted(mixed) == expected


@promise(297)
def test_processes_get_their_share(files: Path) -> None:
    from torch.utils.data import DistributedSampler

    pipeline = opened(files)
    loader = pipeline.get_dataloader(distributed=True, shuffle=True).unwrap()
    assert isinstance(loader.sampler, DistributedSampler)
    assert sorted(learned(pipeline, loader)) == [f"answer {n}" for n in range(10)]


@promise(297)
def test_one_of_several_processes_that_nobody_named_is_an_error(
    files: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE" in str(
        opened(files).get_dataloader(distributed=True).unwrap_err()
    )


@promise(296)
def test_objects_stand_in_for_what_is_configured_and_threads_share_what_is_opened(
    files: Path,
) -> None:
    rows = [{"Q": "x", "a": f"given {n}"} for n in range(3)]
    data = config(files, dataset={"column_mapping": {"q": "Q"}, "columns": ["Q", "a"]})
    data["tokenizer"]["name_or_path"] = "nobody/nothing"
    pipeline = DataPipeline(
        data, tokenizer=str(files / "tokenizer"), datasets={"dev": rows}
    )
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(pipeline.prompt_engine))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1
    assert pipeline.splits == ("dev",)
    assert learned(pipeline, pipeline.get_dataloader("dev").unwrap()) == [
        f"given {n}" for n in range(3)
    ]


@promise(298)
def test_discovering_says_what_there_is(files: Path) -> None:
    found = opened(files).discover().unwrap()
    assert found.features == {"q": "string", "a": "string", "id": "int64"}
    assert (found.num_rows, found.num_rows_exact, found.splits) == (
        10,
        True,
        ("train",),
    )


@promise(106, 303)
@pytest.mark.parametrize("stages", [["sft"], ["packing"]])
def test_a_build_of_the_file_has_the_rows_of_the_loader(
    files: Path, stages: list[str]
) -> None:
    pipeline = opened(files)
    data = config(
        files,
        dataset={"stages": stages},
        name="module",
        save={"output_dir": str(files / "store")},
    )
    result = build_dataset(data, workers=1)
    tables = {
        entry.split: pq.read_table(Path(result.path) / entry.path)
        for entry in result.manifest.files
    }
    assert set(tables) == {"train", "test"}
    (batch,) = pipeline.get_dataloader("test").unwrap()
    own = batch["attention_mask"].bool()
    ids = [
        row[mask].tolist() for row, mask in zip(batch["input_ids"], own, strict=True)
    ]
    loss = [
        (row[mask] != -100).tolist()
        for row, mask in zip(batch["labels"], own, strict=True)
    ]
    stored = tables["test"]
    if stages == ["sft"]:
        assert stored["input_ids"].to_pylist() == batch["input_ids"].tolist()
        assert stored["loss_mask"].to_pylist() == (batch["labels"] != -100).tolist()
    else:
        flat = [value for row in stored["input_ids"].to_pylist() for value in row]
        marks = [value for row in stored["loss_mask"].to_pylist() for value in row]
        joined = list(itertools.chain(*ids))
        assert flat[: len(joined)] == joined
        assert marks[: len(joined)] == list(itertools.chain(*loss))
        (packed,) = (
            opened(files, dataset={"stages": stages}).get_dataloader("test").unwrap()
        )
        assert stored["input_ids"].to_pylist() == packed["input_ids"].tolist()
        assert stored["loss_mask"].to_pylist() == (packed["labels"] != -100).tolist()


@promise(106)
def test_the_command_line_plans_the_file(files: Path, capsys: Any) -> None:
    (files / "module.yaml").write_text(json.dumps(config(files)))
    assert (
        main(["plan", str(files / "module.yaml"), "--store", str(files / "store")]) == 0
    )
    told = capsys.readouterr().out
    assert re.search(r"train +1 +1 ", told) and re.search(r"test +1 +1 ", told)


@promise(115, 119, 302)
def test_conversations_are_rendered_by_the_chat_template(tmp_path: Path) -> None:
    write(speaking(MARKED_CHATML), tmp_path / "tokenizer")
    turns = [
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Good day"},
        ],
        [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day"}],
    ]
    section = {"format_type": "chat", "input_columns": ["messages"]}
    pipeline = DataPipeline(
        config(tmp_path, prompt_template=section, tokenizer={"max_length": 64}),
        datasets={"train": [{"messages": each} for each in turns]},
    )
    (batch,) = pipeline.get_dataloader().unwrap()
    assert batch["input_ids"][0].tolist() == batch["input_ids"][1].tolist()
    assert learned(pipeline, [batch]) == ["Good day<|im_end|>"] * 2
