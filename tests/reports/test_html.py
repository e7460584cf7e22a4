"""Markup by how it is made: whatever a text holds, it stays a text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.base.markup import tag
from tokenlake.etl.reports import Table, label, number, to_html
from tokenlake.etl.reports.html import (
    areas,
    bars,
    coloured,
    doubling,
    flow,
    folded,
    legend,
    page,
    stack,
)
from tokenlake.runtime.store import Account

EVIL: Final = (
    *(
        "<script>alert(1)</script>",
        "</style><img src=x onerror=alert(1)>",
        "\" onload='x' x=\"",
    ),
    *(
        "'><svg/onload=x>",
        "<!-- -->",
        "]]>",
        "&lt;b&gt;",
        "\u202eevil\u202c",
        "\x00\x1b[2J\x9b",
        "\ud800",
    ),
    *("</pre></details>", "\r\n\t"),
)
HOSTILE = st.one_of(
    st.sampled_from(EVIL),
    st.text(st.characters(), min_size=1, max_size=30),
    st.text("<>&\"'/=! abc-", min_size=1, max_size=20),
)


class Skeleton(HTMLParser):
    """The tags of a page with the names of their attributes, and its words."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.words: list[str] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.tags.append(("declaration", decl))

    def handle_pi(self, data: str) -> None:
        self.tags.append(("instruction", data))

    def unknown_decl(self, data: str) -> None:
        self.tags.append(("unknown", data))


def everything(text: str) -> str:
    """A page that shows a text in each place where one may come from data."""
    pieces = coloured({text: 1, f"{text} ": 2}, {text: text})
    reasons = {text: 3}
    account = Account(
        rows_read=5,
        kept=2,
        quarantined=reasons,
        documents=2,
        tokens=4,
        content_packed=4,
    )
    table = Table((label("key", text), number("n", text)), ((text, 1),), f"of {text}")
    parts = [
        *(
            tag("p", text, title=text, class_=text),
            folded(text, text),
            to_html(table),
            flow(account),
        ),
        *(stack(pieces), legend(pieces, 3), bars([(text, 2)])),
        areas([(0, {text: 0.5, "other": 0.5}), (9, {text: 0.1, "other": 0.9})], text),
    ]
    return page(text, text, tag("p", text), [("Section", tag("div", *parts))])


@given(text=HOSTILE)
def test_no_text_becomes_a_tag(text: str) -> None:
    found = Skeleton(everything(text))
    assert found.tags == Skeleton(everything("harmless")).tags
    everything(text).encode()  # half a surrogate pair would not go into a file


@given(
    text=st.text(
        st.characters(exclude_categories=("Cc", "Cs", "Cf")), min_size=1, max_size=30
    )
)
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    assert "".join(Skeleton(tag("p", text).text).words) == text


def test_what_drives_a_reader_is_made_visible() -> None:
    assert tag("p", "a\x00\u202eb\nc\td").text == "<p>a\\x00\\u202eb\nc\td</p>"


def test_only_what_is_markup_stays_markup() -> None:
    bold = tag("b", "x")
    assert tag("p", bold, "<b>").text == "<p><b>x</b>&lt;b&gt;</p>"
    assert tag("br", id=1.5, hidden=True, open=False).text == '<br id="1.5" hidden>'


def test_a_page_loads_and_runs_nothing() -> None:
    whole = everything("harmless")
    assert (
        "default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;; img-src data:"
        in whole
    )
    tags = Skeleton(whole).tags
    assert not {"script", "link", "img", "iframe", "form", "object", "base"} & {
        name for name, *_ in tags
    }
    assert not any(
        attribute.startswith("on") or attribute == "src"
        for _, *rest in tags
        for attribute in rest
    )
    assert "url(" not in whole and "@import" not in whole


@given(
    lengths=st.dictionaries(st.integers(1, 1 << 40), st.integers(1, 1000), max_size=20)
)
def test_ranges_that_double_count_everything_once(lengths: dict[int, int]) -> None:
    found = doubling(lengths.items())
    assert sum(many for _, many in found) == sum(lengths.values())
    for name, _ in found:
        low, _, high = name.replace(",", "").partition("-")
        within = sum(
            many
            for length, many in lengths.items()
            if int(low) <= length <= int(high or low)
        )
        assert (name, within) in found


def test_an_account_of_nothing_has_an_empty_flow() -> None:
    assert Skeleton(flow(Account()).text).tags == [("div", "class"), ("/div",)]


@pytest.mark.parametrize("seq_length", [None, 8])
def test_the_flow_says_each_count(seq_length: int | None) -> None:
    packed: dict[str, Any] = (
        {"sequences": 2, "slots": 16, "eos": 3, "pad": 4} if seq_length else {}
    )
    account = Account(
        rows_read=9, filtered={"empty": 4}, quarantined={"null_text": 2}, kept=3, documents=3,
        tokens=12, content_packed=9, dropped={"too_long": 3}, **packed,
    )  # fmt: skip
    account.check(seq_length)
    told = "".join(Skeleton(flow(account).text).words)
    for words in (
        "rows read 9",
        "filtered: empty 4",
        "quarantined: null_text 2",
        "dropped: too_long 3",
    ):
        assert words in told
    assert ("padding 4" in told) == (seq_length is not None)
