"""The flow of an account: which rows became documents, tokens and slots, and where
the others went.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from tokenlake.base.markup import Html, tag
from tokenlake.base.numbers import count
from tokenlake.etl.reports.dataset import CALLED, LAW_NAMES
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

_STREAM_HEIGHT: Final = 40


def flow(account: Account) -> Html:
    """Draw the path of every row and token: one bar for each law of the account,
    joined by its continuing part.
    """
    laws = [law for law in LAWS if account.count(law)]
    bars = [_bar(account, law) for law in laws]
    drawings = [[stack(pieces)] for pieces in bars]
    for index, (law, next_law) in enumerate(pairwise(laws)):
        drawings[index].append(_stream(account, law, next_law))

    rows: list[Html] = []
    for law, pieces, drawn in zip(laws, bars, drawings, strict=True):
        total = account.count(law)
        words = tag(
            "div",
            tag("b", f"{LAW_NAMES.get(law, law)} {count(total)}"),
            legend(pieces, total),
        )
        rows.append(tag("div", words, tag("div", *drawn, class_="drawn")))
    return tag("div", *rows, class_="flow")


def _bar(account: Account, law: str) -> list[Piece]:
    """Return the parts of a law that are not empty; a part with reasons has one
    piece for each reason.
    """
    pieces: list[Piece] = []
    for part in LAWS[law]:
        name = CALLED.get(part, part)
        value = getattr(account, part)
        if isinstance(value, int):
            counts = {name: value}
        else:
            counts = {f"{name}: {reason}": number for reason, number in value.items()}
        for piece_name, number in counts.items():
            colour = GREY if part == "pad" else len(pieces) % GREY
            if number:
                pieces.append(Piece(piece_name, number, colour))
    return pieces


def _stream(account: Account, law: str, next_law: str) -> Html:
    """Draw the part of a law that continues, from its bar to the bar of the next
    law.
    """
    part, next_part = _FLOWS[law]
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
    """Return the left and right end of a part in the bar of its law; None: the whole
    bar.
    """
    if part is None:
        return 0, WIDTH
    parts = LAWS[law]
    before = sum(account.count(name) for name in parts[: parts.index(part)])
    scale = WIDTH / account.count(law)
    return before * scale, (before + account.count(part)) * scale
