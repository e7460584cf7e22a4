"""`tokenlake plan` refuses the exports that a run refuses, in the same words, and no
others.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builds import Config
from tests.export.trainer_readers import READERS
from tokenlake import export_version
from tokenlake.cli.app import main
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl import build_dataset

FORMATS = ("parquet", "arrow", "jsonl", *sorted(READERS))

DATASETS: dict[str, Config] = {
    "documents": {},
    "fields": {"additional_fields": ["lang"]},
    "by value": {"additional_fields": ["lang"], "shard_column": "lang"},
    "padded": {"tokenizer": {"padding": "max_length", "max_length": 32}},
    "masked": {"tokenizer": {"return_attention_mask": True}},
    "prompts": {
        "prompt": {
            "template": "{text} {lang}",
            "input_columns": ["text"],
            "label_column": "lang",
        }
    },
    "preferences": {
        "preference": {"prompt": "text", "chosen": "lang", "rejected": "other"}
    },
}
"""Options of a dataset that decide which columns its rows have."""

SECTIONS: tuple[Config, ...] = (
    {},
    {"append_eos": True},
    {"num_shards": 2},
    {"compression": "zstd"},
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    with (folder / "d.jsonl").open("w") as file:
        for number in range(8):
            row = {"text": f"water {number}", "lang": "en", "other": "no water"}
            file.write(json.dumps(row) + "\n")
    return folder / "d.jsonl"


def config_of(
    inputs: Path, tokenizer: Path, target: Path, format: str, name: str, save: Config
) -> Config:
    dataset: Config = {"name": "d", "data_files": str(inputs), **DATASETS[name]}
    if "tokenizer" in dataset:
        dataset["tokenizer"] = {"name_or_path": str(tokenizer), **dataset["tokenizer"]}
    return {
        "name": "set",
        "datasets": [{**dataset, "save_path": str(target)}],
        "default_tokenizer": str(tokenizer),
        "save": {"output_dir": "store", "format": format, **save},
    }


def refusal(config: Config) -> str | None:
    """Return the message with which a run refuses a configuration; None if it builds
    and exports it.
    """
    try:
        build_dataset(config, workers=0)
    except ConfigError as error:
        assert not list(Path("store").rglob("*.parquet")), "refused after a unit"
        return str(error)
    return None


CASES = st.tuples(
    st.sampled_from(FORMATS),
    st.sampled_from(sorted(DATASETS)),
    st.sampled_from(SECTIONS),
)


@example(case=("megatron", "prompts", {}))
@example(case=("mds", "preferences", {}))
@example(case=("npy", "padded", {"append_eos": True}))
@example(case=("litdata", "masked", {"append_eos": True}))
@example(case=("numpy", "by value", {"num_shards": 2}))
@settings(max_examples=8)
@given(case=CASES)
def test_a_plan_refuses_what_a_run_refuses(
    inputs: Path, tokenizer_dir: Path, case: tuple[str, str, Config]
):
    format, name, save = case
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        target = Path(folder) / "out"
        config = config_of(inputs, tokenizer_dir, target, format, name, save)
        Path("set.yaml").write_text(yaml.safe_dump(config))
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(["plan", "set.yaml"])
        assert not Path("store").exists()
        message = refusal(config)
    said = " ".join(output.getvalue().split())
    if message is None:
        assert code == 0, said
    else:
        assert code != 0, message
        assert message.splitlines()[-1].split(": ", 1)[-1][:40] in said


def test_a_missing_package_is_an_error_of_the_plan(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    inputs: Path,
    tokenizer_dir: Path,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    config = config_of(
        inputs, tokenizer_dir, tmp_path / "out", "array_record", "documents", {}
    )
    Path("set.yaml").write_text(yaml.safe_dump(config))
    assert main(["plan", "set.yaml"]) != 0
    assert "pip install 'tokenlake[array_record]'" in capsys.readouterr().err
    with pytest.raises(TokenlakeError, match="array_record"):
        build_dataset(config, workers=0)
    assert not Path("store").exists()


def test_an_interrupted_export_of_another_dataset_is_in_the_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    inputs: Path,
    tokenizer_dir: Path,
):
    monkeypatch.chdir(tmp_path)
    config = config_of(
        inputs, tokenizer_dir, tmp_path / "out", "mds", "documents", {"num_shards": 2}
    )
    build_dataset({**config, "name": "other"}, workers=0)
    shutil.rmtree("out")

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_version("store/other", "out", "mds", num_shards=2, on_progress=stop)
    Path("set.yaml").write_text(yaml.safe_dump(config))
    assert main(["plan", "set.yaml"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted export of other" in said and "save.overwrite: true" in said
    with pytest.raises(ConfigError, match="interrupted export of other"):
        build_dataset(config, workers=0)
    config["save"]["overwrite"] = True
    build_dataset(config, workers=0)
    assert Path("out/train/index.json").exists()
