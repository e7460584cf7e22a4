"""A probe that was equal once is not made again, and any that could come out otherwise is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import changed
from tokenlake.errors import EngineMismatchError
from tokenlake.tokenizers import gate
from tokenlake.tokenizers.gate import choose_encoder
from tokenlake.tokenizers.probe_cache import ProbeCache

TEXTS = ["a lake holds water", "and so does a well"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "probes.sqlite"


def asked(monkeypatch: pytest.MonkeyPatch, **given: Any) -> bool:
    """Whether the engines were compared."""
    compared: list[bool] = []

    def probe(*_: Any) -> int:
        compared.append(True)
        raise EngineMismatchError("they differ")

    with monkeypatch.context() as patch:
        patch.setattr(gate, "probe", probe)
        choice, encoder = choose_encoder(**given)
    assert choice.engine == encoder.engine == ("tokenizers" if compared else "gigatoken")
    assert compared or choice.reason.startswith("on the allow-list, equal to the reference on ")
    return bool(compared)


def test_what_was_equal_is_not_compared_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same: dict[str, Any] = {"files": samples.byte_level(), "sample_texts": TEXTS, "known": ProbeCache(path)}
    assert asked(monkeypatch, **same)
    assert asked(monkeypatch, **same)  # a difference is not remembered
    first = choose_encoder(**same)[0]
    assert not asked(monkeypatch, **same)
    assert not asked(monkeypatch, **same | {"known": ProbeCache(path)})
    assert choose_encoder(**same)[0] == first
    others: list[dict[str, Any]] = [
        {"sample_texts": [*TEXTS, "another"]},
        {"sample_texts": ["".join(TEXTS)]},
        {"special_tokens_in_text": "encode"},
        {"places": True},
        {"files": changed(samples.byte_level(), lambda spec: spec["model"]["merges"].pop())},
        {"known": None},
        {"known": ProbeCache(path.with_name("elsewhere"))},
    ]
    assert [asked(monkeypatch, **same | other) for other in others] == [True] * len(others)


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _other_proof(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE equal SET proof = zeroblob(32)")
    connection.close()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_torn, _other_proof, _folder])
def test_a_damaged_cache_knows_nothing_and_is_no_error(
    damage: Callable[[Path], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: dict[str, Any] = {"files": samples.byte_level(), "sample_texts": TEXTS, "known": ProbeCache(path)}
    choose_encoder(**same)
    assert not asked(monkeypatch, **same)
    damage(path)
    assert asked(monkeypatch, **same)
    assert choose_encoder(**same)[0].engine == "gigatoken"
