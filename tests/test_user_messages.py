"""The collection of messages is current, and the collector finds the texts that
users see.
"""

from __future__ import annotations

import ast

from tests.user_messages import FILE, Collector, collection


def messages_in(code: str, has_commands: bool = False) -> list[str]:
    """Return the messages of some code."""
    collector = Collector(has_commands)
    collector.visit(ast.parse(code))
    return list(collector.messages)


def test_the_collection_is_current() -> None:
    assert FILE.read_text("utf-8") == collection(), (
        "run `python -m tests.user_messages` to write it again"
    )


def test_values_are_marked_and_texts_inside_of_texts_are_messages_too() -> None:
    code = 'raise Error(f"{path}: got {count!r}, " + f"expected {"one row" if few else "many rows"}")'
    # Until Python 3.12 a text inside an f-string needs other quotes.
    code = code.replace('"one row"', "'one row'").replace('"many rows"', "'many rows'")
    assert messages_in(code) == ["{…}: got {…}, expected {…}", "one row", "many rows"]


def test_docstrings_are_messages_where_users_see_them() -> None:
    function = 'def {}(value):\n    """Do this now."""\n    return "text of it"\n'
    assert messages_in(function.format("run")) == ["text of it"]
    assert messages_in(function.format("run"), has_commands=True) == [
        "Do this now.",
        "text of it",
    ]
    assert messages_in(function.format("other"), has_commands=True) == ["text of it"]
    assert messages_in("@flow(name='mix')\n" + function.format("mix")) == [
        "Do this now.",
        "text of it",
    ]
    section = 'class Options({}):\n    """Some options here."""\n    key: int = 1\n    """Number of rows."""\n'
    assert messages_in(section.format("Section")) == [
        "Some options here.",
        "Number of rows.",
    ]
    assert messages_in(section.format("Other")) == []


def test_texts_for_programs_are_left_out() -> None:
    assert (
        messages_in(
            'cast("dict[str, Any]", value)\nrun("SELECT a FROM b")\nkey = "one_word"'
        )
        == []
    )
