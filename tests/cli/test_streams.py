"""Texts for streams whose encoding lacks some of their characters."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.cli.streams import can_show, encodable_json

_NO_SURROGATES = st.characters(exclude_categories=["Cs"])


@given(st.text(_NO_SURROGATES), st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8", "shift_jis"]))
def test_json_means_the_same_in_every_encoding(text: str, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    written = encodable_json(json.dumps({text: [text]}, ensure_ascii=False), stream)
    stream.write(written)
    stream.flush()
    assert json.loads(written) == {text: [text]}


@pytest.mark.parametrize(
    ("encoding", "text", "is_shown"),
    [("ascii", "a", True), ("ascii", "\u00e9", False), ("latin-1", "\u00e9", True)],
)
def test_what_an_encoding_has_can_be_shown(encoding: str, text: str, is_shown: bool) -> None:
    assert can_show(text, io.TextIOWrapper(io.BytesIO(), encoding)) is is_shown
