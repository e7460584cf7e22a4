"""Texts for streams whose encoding lacks some of their characters."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenlake.cli.app import main

NO_SURROGATES = st.characters(exclude_categories=["Cs"])
ENCODINGS = st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8", "shift_jis"])


def said_of(name: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the text, in JSON on a stream of an encoding, about a command that does
    not exist.
    """
    # Strict: a character that it lacks is an exception.
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        assert main([f"no-{name}", "--json"]) == 2
    stream.seek(0)
    return stream.read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(NO_SURROGATES), encoding=ENCODINGS)
def test_json_means_the_same_in_every_encoding(
    monkeypatch: pytest.MonkeyPatch, name: str, encoding: str
) -> None:
    message = json.loads(said_of(name, encoding, monkeypatch))["message"]
    assert message.startswith(f"there is no command {f'no-{name}'!r}")


@pytest.mark.parametrize(
    ("encoding", "is_shown"), [("ascii", False), ("latin-1", True), ("utf-8", True)]
)
def test_a_character_that_the_encoding_has_is_not_escaped(
    encoding: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ("\u00e9" in said_of("\u00e9", encoding, monkeypatch)) is is_shown
