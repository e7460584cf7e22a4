"""A probe that was equal once is not made again, and any that could come out
otherwise is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import changed
from tokenlake.base.cache import DiskCache
from tokenlake.errors import EngineMismatchError
from tokenlake.etl.tokenizers import choose_encoder, gate

# About probes of engines that are chosen beside `tokenizers` before 1.0.
pytestmark = needs_stages

TEXTS = ["a lake holds water", "and so does a well"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "probes"


def asked(monkeypatch: pytest.MonkeyPatch, **given: Any) -> bool:
    """Whether the engines were compared."""
    compared: list[bool] = []

    def probe(*_: Any) -> int:
        compared.append(True)
        raise EngineMismatchError("they differ")

    with monkeypatch.context() as patch:
        patch.setattr(gate, "probe", probe)
        choice, encoder = choose_encoder(**given)
    assert (
        choice.engine == encoder.engine == ("tokenizers" if compared else "gigatoken")
    )
    assert compared or choice.reason.startswith(
        "on the allow-list, equal to the reference on "
    )
    return bool(compared)


def test_what_was_equal_is_not_compared_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: dict[str, Any] = {
        "files": samples.byte_level(),
        "sample_texts": TEXTS,
        "probes": DiskCache(path),
    }
    assert asked(monkeypatch, **same)
    assert asked(monkeypatch, **same)  # a difference is not remembered
    first = choose_encoder(**same)[0]
    assert not asked(monkeypatch, **same)
    assert not asked(monkeypatch, **same | {"probes": DiskCache(path)})
    assert choose_encoder(**same)[0] == first
    others: list[dict[str, Any]] = [
        {"sample_texts": [*TEXTS, "another"]},
        {"sample_texts": ["".join(TEXTS)]},
        {"special_tokens_in_text": "encode"},
        {"places": True},
        {
            "files": changed(
                samples.byte_level(), lambda spec: spec["model"]["merges"].pop()
            )
        },
        {"probes": None},
        {"probes": DiskCache(path.with_name("elsewhere"))},
    ]
    assert [asked(monkeypatch, **same | other) for other in others] == [True] * len(
        others
    )


def _torn(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:100])


def _flipped(entry: Path) -> None:
    data = entry.read_bytes()
    entry.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _folder(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


@pytest.mark.parametrize("damage", [_torn, _flipped, _folder])
def test_a_damaged_cache_knows_nothing_and_is_no_error(
    damage: Callable[[Path], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: dict[str, Any] = {
        "files": samples.byte_level(),
        "sample_texts": TEXTS,
        "probes": DiskCache(path),
    }
    choose_encoder(**same)
    assert not asked(monkeypatch, **same)
    [entry] = path.iterdir()
    damage(entry)
    assert asked(monkeypatch, **same)
    assert choose_encoder(**same)[0].engine == "gigatoken"
