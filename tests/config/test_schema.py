"""The JSON Schema: complete for editors, and in agreement with what loads; and the
package's own surface.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import tokenlake.config
from tokenlake import load_config
from tokenlake.config import json_schema

DEPLOYMENT = """\
name: llama2-2048
default_tokenizer: meta-llama/Llama-2-7b-hf
datasets:
  - name: code
    data_files: ["data/code/*.jsonl.zst", data/more]
    type: jsonl
    content_field: content
    on_bad_record: quarantine
    splits: {train: 0.999, validation: 0.001}
    exclude: takedowns.parquet
  - name: prose
    data_files: data/prose
    type: txt
    text_mode: lines
    tokenizer: {name_or_path: ./tokenizer.json, add_special_tokens: false}
source: {unit_size: 64MiB, hash_threads: 4}
tokenize: {engine: auto, special_tokens_in_text: literal}
pack: {enabled: true, seq_length: 2048}
mix:
  weights: {code: 0.25, prose: 0.75}
  weight_schedule:
    - {step: 0, weights: {code: 1, prose: 0}}
  weight_schedule_type: cosine
save: {output_dir: ./artifacts, max_shard_size: 1.5 GB, hub_token: {env: HF_TOKEN}}
ray: {resources_per_worker: {CPU: 2}}
"""


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_a_deployments_file_is_valid_and_loads(
    validator: jsonschema.Draft202012Validator, tmp_path: Path
) -> None:
    validator.validate(yaml.safe_load(DEPLOYMENT))
    path = tmp_path / "llama2-2048.yaml"
    path.write_text(DEPLOYMENT)
    config = load_config(path)
    validator.validate(config.model_dump(mode="json"))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"datasets": []},
        {"datasets": [{}]},
        {"datasets": [{"data_files": "x", "tokenizr": "y"}]},
        {"datasets": [{"data_files": "x", "type": "parqet"}]},
        {"datasets": [{"data_files": "x"}], "pack": {"seq_length": 0}},
        {"datasets": [{"data_files": "x"}], "pack": {"seq_length": "512"}},
        {"datasets": [{"data_files": "x"}], "save": {"max_shard_size": "5 zb"}},
        {"datasets": [{"data_files": "x"}], "save": {"hub_token": {"evn": "x"}}},
        {"datasets": [{"data_files": "x"}], "name": "Llama 2"},
        {"datasets": [{"data_files": "x"}], "seed": -1},
    ],
    ids=str,
)
def test_what_does_not_load_is_not_valid(
    validator: jsonschema.Draft202012Validator, data: dict[str, Any]
) -> None:
    assert not validator.is_valid(data)
    with pytest.raises(Exception, match=r"\w"):
        load_config(data)


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for title, part in {"": schema, **schema["$defs"]}.items():
        for name, details in part.get("properties", {}).items():
            yield f"{title}.{name}", details


def test_every_key_has_a_description() -> None:
    schema = json_schema()
    keys = dict(properties(schema))
    assert len(keys) > 100
    assert [
        key for key, details in keys.items() if len(details.get("description", "")) < 10
    ] == []
    assert all(
        part["additionalProperties"] is False for part in schema["$defs"].values()
    )
    assert schema["additionalProperties"] is False


def test_the_public_names_are_all_there() -> None:
    assert set(tokenlake.config.__all__) <= set(dir(tokenlake.config))
    for name in tokenlake.config.__all__:
        assert getattr(tokenlake.config, name) is not None
    with pytest.raises(AttributeError, match="PipelineConfg"):
        tokenlake.config.PipelineConfg  # noqa: B018
