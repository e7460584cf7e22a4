"""``examples/recipes.py``: each trains, or feeds what the trainer named reads, from
one small version of the demo.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from examples import recipes
from tests.lazily import lazily
from tokenlake import demo as tour
from tokenlake.etl import build_dataset

jax: Any = lazily("jax")
sharding: Any = lazily("jax.sharding")

ROOT = Path(__file__).resolve().parents[1]
LENGTH, ROWS = 64, 4
PAIRS = [
    {
        "prompt": f"Count to {i}.",
        "chosen": " ".join(map(str, range(i + 1))),
        "rejected": "No.",
    }
    for i in range(12)
]

TRAINED = """
import json, sys
import torch, tokenlake as tl
from examples import recipes
from tests.lazily import lazily
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments
from trl import DPOConfig, SFTConfig

store, out = sys.argv[1:]
torch.set_num_threads(1)
demo, pairs = (tl.open(store, name, split="train") for name in ("demo", "pairs"))
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
shape = LlamaConfig(vocab_size=demo.vocab_size, **sizes)
usual = {"output_dir": out, "max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True, "report_to": "none",
         "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "bf16": False}
END = "<|endoftext|>"
tokenizer = PreTrainedTokenizerFast(tokenizer_object=demo.tokenizer, pad_token=END, eos_token=END)

def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(shape)

for name, trainer in {
    "transformers": recipes.transformers(demo, model(), TrainingArguments(**usual)),
    "trl_sft": recipes.trl_sft(demo, model(), SFTConfig(**usual), tokenizer),
    "trl_dpo": recipes.trl_dpo(pairs, model(), model(), DPOConfig(**usual), tokenizer),
}.items():
    first = next(iter(trainer.get_train_dataloader()))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"name": name, "losses": losses, "columns": sorted(first), "rows": len(first["input_ids"])}))
"""
TRAINS = {
    "transformers": (4, {"input_ids", "labels", "position_ids"}),
    "trl_sft": (4, {"input_ids", "labels", "position_ids"}),
    "trl_dpo": (8, {"input_ids", "attention_mask", "completion_mask"}),
}
"""Rows of a batch, in which DPO lays rejected answers below chosen ones, and what it
has.
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`demo`, packed rows of the demo's corpus, and `pairs`, preferences for DPO."""
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tour, "PROSE_BYTES", 60_000)
        patch.setattr(tour, "VOCABULARY", 512)
        patch.setattr(tour, "_SAMPLE_BYTES", 60_000)
        settings = tour.demo_settings(folder)
    settings["pack"]["seq_length"] = LENGTH
    (prose,) = (each for each in settings["datasets"] if each["name"] == "prose")
    build_dataset(settings | {"datasets": [prose | {"num_rows": 40}]}, workers=1)
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    source = {"name": "pairs", "data_files": str(folder / "pairs.jsonl")}
    pairs = {
        "name": "pairs",
        "datasets": [source | {"preference": {"method": "dpo", "trainer": "trl"}}],
    }
    build_dataset(
        settings | pairs | {"pack": {"enabled": False}, "source": {}}, workers=1
    )
    return folder / "artifacts"


@pytest.fixture(scope="module")
def data(store: Path) -> tl.Dataset:
    return tl.open(str(store / "demo"), split="train")


@pytest.fixture(scope="module")
def expected(data: tl.Dataset) -> list[dict[str, Any]]:
    """The first batches, in the loader's order."""
    columns = ("input_ids", "targets", "positions", "segment_ids")
    with tl.DataLoader(data, ROWS, epochs=None, columns=columns) as loader:
        return [
            {name: each.copy() for name, each in batch.items()}
            for batch in itertools.islice(loader, 3)
        ]


@pytest.mark.parametrize("sharded", [False, True])
def test_maxtext(
    data: tl.Dataset, expected: list[dict[str, Any]], sharded: bool
) -> None:
    mesh = sharding.Mesh(jax.devices()[:1], ("data",))
    over = (
        sharding.NamedSharding(mesh, sharding.PartitionSpec("data"))
        if sharded
        else None
    )
    for batch, there in zip(recipes.maxtext(data, ROWS, over), expected, strict=False):
        assert isinstance(batch["targets"], jax.Array) == sharded
        targets = there["targets"]
        assert np.array_equal(batch["inputs"], there["input_ids"])
        assert np.array_equal(batch["targets"][targets >= 0], targets[targets >= 0])
        assert np.array_equal(batch["targets_segmentation"] > 0, targets >= 0)
        assert np.array_equal(batch["inputs_segmentation"], there["segment_ids"])
        names = {
            f"{side}{part}"
            for side in ("inputs", "targets")
            for part in ("", "_position", "_segmentation")
        }
        assert batch.keys() == names


def test_levanter(data: tl.Dataset, expected: list[dict[str, Any]]) -> None:
    for step, there in enumerate(expected):
        batch = next(recipes.levanter(data, ROWS, step))
        assert np.array_equal(batch["tokens"], there["input_ids"])
        # Its loss is that of the next token, wherever the mask says so.
        following = np.roll(batch["tokens"], -1, axis=1)
        assert np.array_equal(
            np.where(batch["loss_mask"], following, -100), there["targets"]
        )


@pytest.mark.filterwarnings("ignore:'set:UserWarning")
@pytest.mark.parametrize("name", ["torchtitan", "torchtitan_grain"])
def test_torchtitan(
    data: tl.Dataset, expected: list[dict[str, Any]], name: str
) -> None:
    recipe, half = getattr(recipes, name), ROWS // 2
    for rank in range(2):
        loader = recipe(data, ROWS, rank, 2)
        iterator = iter(loader)
        for step, there in enumerate(expected):
            inputs, labels = next(iterator)
            mine = slice(rank * half, (rank + 1) * half)
            assert np.array_equal(inputs["input"], there["input_ids"][mine].ravel())
            assert np.array_equal(inputs["positions"], there["positions"][mine].ravel())
            assert np.array_equal(labels, there["targets"][mine].ravel())
            if step == 0:
                state = (
                    loader.state_dict()
                    if name == "torchtitan"
                    else iterator.get_state()
                )
        resumed = recipe(data, ROWS, rank, 2)
        if name == "torchtitan":
            resumed.load_state_dict(state)
            iterator = iter(resumed)
        else:
            iterator = iter(resumed)
            iterator.set_state(state)
        assert np.array_equal(next(iterator)[1], expected[1]["targets"][mine].ravel())


def test_hugging_face_trainers_take_two_steps(store: Path, tmp_path: Path) -> None:
    """A Python of its own: their libraries take seconds to import, and warn of much."""
    pytest.importorskip("accelerate")
    pytest.importorskip("trl")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "lib"), str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    arguments = [sys.executable, "-c", TRAINED, str(store), str(tmp_path / "out")]
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = [
        json.loads(line)
        for line in done.stdout.splitlines()
        if line.startswith('{"name"')
    ]
    assert {
        each["name"]: (each["rows"], set(each["columns"])) for each in said
    } == TRAINS
    for each in said:
        assert len(each["losses"]) == 2 and all(
            0 < loss < 20 for loss in each["losses"]
        ), each
