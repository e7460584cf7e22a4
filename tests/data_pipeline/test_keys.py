"""Every key of a data module acts where rows are loaded, is refused there, or is a
build's alone; none is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel

from tests.lazily import lazily
from tests.tokenizers.tokenizer_samples import byte_level, save, sentencepiece
from tokenlake.config import PromptConfig, TokenizerConfig
from tokenlake.config.dataset import DataModuleConfig
from tokenlake.data_pipeline import DataPipeline
from tokenlake.errors import TokenlakeError

torch: Any = lazily("torch")

DATASET: Final[Any] = DataModuleConfig.model_fields["dataset"].annotation
DATALOADER: Final[Any] = DataModuleConfig.model_fields["dataloader"].annotation
(SPLIT,) = DATASET.model_fields["splits"].default

SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "": DataModuleConfig,
    "dataset.": DATASET,
    "dataset.splits.": type(SPLIT),
    "tokenizer.": TokenizerConfig,
    "prompt_template.": PromptConfig,
    "dataloader.": DATALOADER,
}
#: Sections, whose keys are asked for one by one.
WHOLE: Final = frozenset(
    {"dataset", "tokenizer", "prompt_template", "dataloader", "dataset.splits"}
)
#: What only a build acts on, as the page says.
BUILDS: Final = frozenset({"name", "save"})
#: What permits something that a loader never does.
PERMITS: Final = frozenset({"tokenizer.trust_remote_code"})
#: Acts on datasets of the Hub, and is shown by test_pipeline.
HUB: Final = frozenset({"dataset.config_name"})

ROWS: Final = [
    {"q": f"what {n}", "a": f"answer {n}", "id": n, "none": None} for n in range(10)
]

ACTS: Final[dict[str, dict[str, Any]]] = {
    "dataset.name": {"dataset": {"name": "other.jsonl"}},
    "dataset.streaming": {"dataset": {"streaming": True}},
    "dataset.columns": {
        "dataset": {"columns": ["q", "a"]},
        "prompt_template": {"template": "{q} {id} {a}", "input_columns": []},
    },
    "dataset.column_mapping": {"dataset": {"column_mapping": {"q": "id", "id": "q"}}},
    "dataset.stages": {"dataset": {"stages": ["packing"]}},
    "dataset.splits.name": {"dataset": {"splits": ["test"]}},
    "dataset.splits.sample_size": {
        "dataset": {"splits": [{"name": "train", "sample_size": 3}]}
    },
    "dataset.splits.shuffle": {
        "dataset": {"splits": [{"name": "train", "shuffle": True}]}
    },
    "dataset.splits.seed": {
        "dataset": {"splits": [{"name": "train", "seed": 5}]},
        "dataloader": {"shuffle": True},
    },
    "tokenizer.name_or_path": {"tokenizer": {"name_or_path": "other"}},
    "tokenizer.max_length": {"tokenizer": {"max_length": 48}},
    "tokenizer.truncation": {"tokenizer": {"truncation": False, "max_length": 12}},
    "tokenizer.padding": {"tokenizer": {"padding": "longest"}},
    "tokenizer.padding_side": {"tokenizer": {"padding_side": "left"}},
    "tokenizer.special_tokens": {
        "tokenizer": {"special_tokens": {"pad_token": "<unk>"}}
    },
    "prompt_template.format_type": {
        "prompt_template": {"format_type": "completion", "template": None}
    },
    "prompt_template.template": {"prompt_template": {"template": "{q}: {a}"}},
    "prompt_template.input_columns": {
        "prompt_template": {
            "template": None,
            "format_type": "completion",
            "input_columns": ["q", "id"],
        }
    },
    "prompt_template.label_column": {"prompt_template": {"label_column": None}},
    "prompt_template.optional_columns": {
        "prompt_template": {
            "template": "{q}{none} {a}",
            "input_columns": ["q", "none"],
            "optional_columns": ["none"],
        }
    },
    "prompt_template.separator": {
        "prompt_template": {
            "template": None,
            "format_type": "completion",
            "separator": "---",
        }
    },
    "prompt_template.mask_input": {"prompt_template": {"mask_input": False}},
    "prompt_template.add_bos": {"prompt_template": {"add_bos": False}},
    "prompt_template.add_eos": {"prompt_template": {"add_eos": False}},
    "prompt_template.system_message": {"prompt_template": {"system_message": "say it"}},
    "prompt_template.examples": {
        "prompt_template": {"examples": [{"q": "one", "a": "two"}]}
    },
    "prompt_template.example_separator": {
        "prompt_template": {
            "examples": [{"q": "one", "a": "two"}],
            "example_separator": "---",
        }
    },
    "dataloader.batch_size": {"dataloader": {"batch_size": 2}},
    "dataloader.num_workers": {"dataloader": {"num_workers": 1}},
    "dataloader.pin_memory": {"dataloader": {"pin_memory": True}},
    "dataloader.persistent_workers": {
        "dataloader": {"num_workers": 1, "persistent_workers": True}
    },
    "dataloader.prefetch_factor": {
        "dataloader": {"num_workers": 1, "prefetch_factor": 3}
    },
    "dataloader.shuffle": {"dataloader": {"shuffle": True}},
    "dataloader.drop_last": {"dataloader": {"drop_last": True}},
    "dataloader.long_prompts": {
        "dataloader": {"long_prompts": "shorten"},
        "tokenizer": {"max_length": 14},
    },
    "output_schema": {"output_schema": {"labels": "int32"}},
}
"""Key -> sections that set it, beside :func:`base`; what comes out then is
different.
"""

FAILS: Final = frozenset({"dataset.columns", "tokenizer.truncation"})
"""Keys of these that show in an error: a column that the prompt needs is gone, a row
may not be cut.
"""

WITHOUT: Final[dict[str, dict[str, Any]]] = {
    "dataset.columns": {
        "prompt_template": {"template": "{q} {id} {a}", "input_columns": []}
    },
    "dataset.splits.seed": {"dataloader": {"shuffle": True}},
    "tokenizer.truncation": {"tokenizer": {"max_length": 12}},
    "prompt_template.input_columns": {
        "prompt_template": {"template": None, "format_type": "completion"},
    },
    "prompt_template.optional_columns": {
        "prompt_template": {"template": "{q}{none} {a}", "input_columns": ["q", "none"]}
    },
    "prompt_template.separator": {
        "prompt_template": {"template": None, "format_type": "completion"}
    },
    "prompt_template.example_separator": {
        "prompt_template": {"examples": [{"q": "one", "a": "two"}]}
    },
    "dataloader.persistent_workers": {"dataloader": {"num_workers": 1}},
    "dataloader.prefetch_factor": {"dataloader": {"num_workers": 1}},
    "dataloader.long_prompts": {"tokenizer": {"max_length": 14}},
}
"""What a key is compared with, where that is not the base."""

REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "type": ({"type": "data_modul"}, "type"),
    "version": ({"version": "2.0"}, "version"),
    "tokenizer.add_special_tokens": (
        {"tokenizer": {"add_special_tokens": False}},
        "prompt_template.add_bos: false",
    ),
    "tokenizer.return_attention_mask": (
        {"tokenizer": {"return_attention_mask": False}},
        "output_schema",
    ),
}
"""Key -> sections that set it, and what the error says."""


def keys() -> Iterator[str]:
    for prefix, model in SECTIONS.items():
        yield from (f"{prefix}{name}" for name in model.model_fields)


def test_every_key_is_in_one_of_the_tables() -> None:
    known = [*ACTS, *REFUSED, *BUILDS, *PERMITS, *HUB, *WHOLE]
    assert sorted(known) == sorted(keys())
    assert set(WITHOUT) <= set(ACTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("module")
    for name, rows in (("train", ROWS), ("test", ROWS[:3]), ("other", ROWS[4:])):
        (place / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    save(sentencepiece(), place / "tokenizer")
    save(byte_level(), place / "other")
    return place


def base(folder: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "dataset": {"name": "{split}.jsonl", "splits": ["train"]},
        "tokenizer": {"name_or_path": "tokenizer", "max_length": 40},
        "prompt_template": {
            "template": "Q: {q}\nA: {a}",
            "input_columns": ["q"],
            "label_column": "a",
        },
        "dataloader": {"batch_size": 4},
    }
    for change in changes:
        for section, values in change.items():
            own = config.get(section)
            config[section] = {**own, **values} if isinstance(own, dict) else values
    config["dataset"]["name"] = f"{folder}/{config['dataset']['name']}"
    config["tokenizer"]["name_or_path"] = (
        f"{folder}/{config['tokenizer']['name_or_path']}"
    )
    return config


def shown(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (str(values.dtype), values.tolist()) for name, values in batch.items()
    }


def outcome(config: dict[str, Any]) -> list[Any]:
    """Return all that can be seen of a loader: its options, and two epochs of
    batches; or the error.
    """
    try:
        pipeline = DataPipeline(config)
        loader = pipeline.get_dataloader(pipeline.splits[0]).unwrap()
        names = (
            "batch_size",
            "num_workers",
            "pin_memory",
            "persistent_workers",
            "prefetch_factor",
            "drop_last",
        )
        facts: list[Any] = [
            type(loader.dataset).__name__,
            *(getattr(loader, name) for name in names),
        ]
        # That is PyTorch's own, and takes time.
        if loader.num_workers or loader.pin_memory:
            return facts
        for _ in range(2):
            facts.extend(shown(batch) for batch in loader)
    except TokenlakeError as error:
        return [type(error).__name__, str(error)]
    return facts


@pytest.mark.filterwarnings(
    "ignore:.*(more than were kept|were shortened):RuntimeWarning"
)
@pytest.mark.parametrize("key", ACTS)
def test_a_key_that_acts_changes_what_comes_out(folder: Path, key: str) -> None:
    without = outcome(base(folder, WITHOUT.get(key, {})))
    assert outcome(base(folder, WITHOUT.get(key, {}))) == without
    changed = outcome(base(folder, ACTS[key]))
    assert changed != without
    assert (changed[0] == "BadRecordError") == (key in FAILS), changed[:2]


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_cannot_act_is_refused_with_the_remedy(
    folder: Path, key: str
) -> None:
    change, words = REFUSED[key]
    kind, told = outcome(base(folder, change))
    assert kind == "ConfigError" and words in told


def test_what_contradicts_what_was_given_is_refused(folder: Path) -> None:
    config = base(folder, {"tokenizer": {"special_tokens": {"pad_token": "<unk>"}}})
    given = (
        DataPipeline(config, tokenizer=str(folder / "other"))
        .get_dataloader()
        .unwrap_err()
    )
    assert "tokenizer.special_tokens: set, but the given tokenizer" in str(given)
    empty = (
        DataPipeline(base(folder, {"output_schema": {}})).get_dataloader().unwrap_err()
    )
    assert "output_schema: got no tensor" in str(empty)
    talk = {
        "prompt_template": {
            "format_type": "chat",
            "template": None,
            "label_column": None,
        }
    }
    shortened = base(folder, talk, {"dataloader": {"long_prompts": "shorten"}})
    assert "rows are conversations" in str(
        DataPipeline(shortened).get_dataloader().unwrap_err()
    )
