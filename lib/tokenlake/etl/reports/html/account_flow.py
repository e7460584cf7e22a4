"""The flow of an audit: the path of rows to documents, tokens and places in rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from tokenlake.base.markup import Html, tag
from tokenlake.base.numbers import count
from tokenlake.etl.reports.dataset import CALLED, DOCUMENT_TERMS, LAW_NAMES
from tokenlake.etl.reports.html.figures import (
    GREY,
    WIDTH,
    Piece,
    drawing,
    legend,
    polygon,
    stack,
)
from tokenlake.runtime.store.account import LAWS, Account

_FLOWS: Final = {
    "rows_read": ("kept", "kept"),
    "documents": (None, None),
    "tokens": ("content_packed", "content_packed"),
}
"""Law -> (its part that continues, the same part in the next law); None: all of the
law.
"""

_STREAM_HEIGHT: Final = 40  # units between two bars


def flow(account: Account) -> Html:
    """Draw the path of every row and token.

    Each law of the audit is a bar. A stream joins it to the next bar: the part that
    continues there.
    """
    # Laws without counts have no bar: text that is not packed has no places in rows.
    laws = [law for law in LAWS if account.count(law)]
    # The stream to the next law stands below the bar from which it comes.
    stream_by_law: dict[str, Html] = {}
    for law, next_law in pairwise(laws):
        stream_by_law[law] = _stream(account, law, next_law)

    rows: list[Html] = []
    for law in laws:
        total = account.count(law)
        pieces = _bar(account, law)
        shapes = [stack(pieces)]
        if law in stream_by_law:
            shapes.append(stream_by_law[law])
        words = tag(
            "div",
            tag("b", f"{LAW_NAMES.get(law, law)} {count(total)}"),
            legend(pieces, total),
        )
        rows.append(tag("div", words, tag("div", *shapes, class_="drawn")))
    return tag("div", *rows, class_="flow")


def _bar(account: Account, law: str) -> list[Piece]:
    """Return the parts of a law that are not empty, one for each reason of a part."""
    pieces: list[Piece] = []
    for part in LAWS[law]:
        name = CALLED.get(part, part)
        if law == "documents" and account.expanded:
            name = DOCUMENT_TERMS[part]
        part_counts = getattr(account, part)
        counts: dict[str, int] = {}
        if isinstance(part_counts, int):
            counts[name] = part_counts
        else:
            for reason, amount in part_counts.items():
                counts[f"{name}: {reason}"] = amount
        for piece_name, amount in counts.items():
            # Padding is always grey; other parts take the remaining colours in turn.
            colour = len(pieces) % GREY
            if part == "pad":
                colour = GREY
            if amount:
                pieces.append(Piece(piece_name, amount, colour))
    return pieces


def _stream(account: Account, law: str, next_law: str) -> Html:
    """Draw the part of a law that continues, from its bar to the next bar."""
    part, next_part = _FLOWS[law]
    # If a law between two bars has no counts, the stream leads to a law that has no
    # part of this name: it then covers the whole bar.
    if next_part not in LAWS[next_law]:
        next_part = None
    top_left, top_right = _span(account, law, part)
    bottom_left, bottom_right = _span(account, next_law, next_part)
    corners = [
        (top_left, 0),
        (top_right, 0),
        (bottom_right, _STREAM_HEIGHT),
        (bottom_left, _STREAM_HEIGHT),
    ]
    return drawing(_STREAM_HEIGHT, polygon(corners, "stream"))


def _span(account: Account, law: str, part: str | None) -> tuple[float, float]:
    """Return the left and right end of a part in the bar of its law.

    None for a part is the whole bar.
    """
    if part is None:
        return 0, WIDTH
    # Parts lie side by side in the order of the law.
    parts = LAWS[law]
    before = sum(account.count(name) for name in parts[: parts.index(part)])
    scale = WIDTH / account.count(law)
    return before * scale, (before + account.count(part)) * scale
