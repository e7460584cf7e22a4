"""What a build keeps and takes up again: tokens of sources where asked for, units of
older versions or none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds import Config, config_of
from tests.rowwise.pipeline_support import written
from tests.seeds import promise
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.errors import NotAvailableError
from tokenlake.etl import build_dataset

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "in").mkdir()
    for name in "ab":
        lines = [
            f'{{"text": "{name} word {" word" * (number % 9)}"}}\n'
            for number in range(60)
        ]
        (tmp_path / "in" / f"{name}.jsonl").write_text("".join(lines))
    tokenizer = Path(written(samples.byte_level(), tmp_path / "tok"))
    return config_of(tmp_path, tmp_path / "in" / "*.jsonl", tokenizer, pack=32)


@promise(49)
def test_tokens_are_kept_as_a_dataset_from_which_rows_are_packed(
    config: Config, tmp_path: Path
):
    plain = build_dataset(config | {"name": "plain"}, workers=1)
    kept = build_dataset(config | {"tokenize": {"cache_tokenized": True}}, workers=1)
    store = tmp_path / "store"
    assert {path.name for path in store.iterdir()} >= {"plain", "set", "set.s.tokens"}
    assert kept.manifest.account.content_packed == plain.manifest.account.content_packed
    wider = config | {
        "tokenize": {"cache_tokenized": True},
        "pack": {"enabled": True, "seq_length": 64},
    }
    assert build_dataset(wider, workers=1).version == 2
    assert [
        path.name
        for path in (store / "set.s.tokens").iterdir()
        if path.name.startswith("v")
    ] == ["v1"]


@promise(34)
def test_units_of_older_versions_are_taken_over_or_not(config: Config, tmp_path: Path):
    [dataset], config = config["datasets"], config | {"source": {"unit_size": 1024}}
    units = build_dataset(config, workers=1).units_built
    (tmp_path / "in" / "c.jsonl").write_text('{"text": "more"}\n')
    second = build_dataset(config, workers=1)
    assert (second.units_built, second.units_reused) == (1, units)
    (tmp_path / "in" / "d.jsonl").write_text('{"text": "and more"}\n')
    third = build_dataset(
        config | {"datasets": [dataset | {"cache_enabled": False}]}, workers=1
    )
    assert (third.units_built, third.units_reused) == (units + 1, 0)
    (tmp_path / "in" / "e.jsonl").write_text('{"text": "and this"}\n')
    # Equal units, whoever asked for them.
    assert build_dataset(config, workers=1).units_reused == units


def test_a_cache_beside_the_store_is_refused(config: Config):
    [dataset] = config["datasets"]
    with pytest.raises(
        NotAvailableError, match="a build resumes and reuses from its store"
    ):
        build_dataset(config | {"datasets": [dataset | {"cache_path": "c"}]}, workers=1)
    with pytest.raises(NotAvailableError, match=r"cache\.compression"):
        build_dataset(config | {"cache": {"compression": "zstd"}}, workers=1)
