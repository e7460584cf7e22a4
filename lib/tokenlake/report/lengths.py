"""What becomes, or became, of documents that are longer than ``max_length``, in a sentence."""

from __future__ import annotations

from typing import Final

from tokenlake.account import Account
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.report.numbers import count, percent

#: How the account calls documents that were cut (``normalized``), and what was done to them.
CUT: Final = {"long_documents_truncate": "truncated", "long_documents_split": "split"}

_AT: Final = {
    "simple": "at a token",
    "word": "between words",
    "sentence": "between sentences",
    "smart": "between sentences or words",
}
_AWAY: Final = {"right": "their ends are cut away", "left": "their beginnings are cut away"}


def policy(settings: ResolvedTokenizer) -> str:
    """``truncated at 2,048``, for a table."""
    most = count(settings.max_length)
    return {
        "keep": "kept",
        "truncate": f"truncated at {most}",
        "split": f"split at {most}",
        "drop": f"left out above {most}",
    }[settings.long_documents]


def expected(settings: ResolvedTokenizer, documents: int, long: int, tokens: int, dropped: int) -> str:
    """Say what a build will do with long documents, and about how many tokens that costs.

    Args:
        documents, tokens: about how many there are, before the policy.
        long, dropped: about how many of them are long, and how many are dropped.
    """
    if settings.long_documents == "keep":
        return "kept whole, nothing is dropped"
    what = {
        "truncate": f"truncated {_AT[settings.truncation_strategy]}, {_AWAY[settings.truncation_side]}",
        "split": "split into pieces, nothing is dropped",
        "drop": "left out",
    }[settings.long_documents]
    most = count(settings.max_length)
    if not long:
        return f"no document of the sample is longer than {most} tokens; longer ones are {what}"
    loss = (
        "" if settings.long_documents == "split" else f", about {_share(dropped, tokens)} of tokens dropped"
    )
    return f"about {_share(long, documents)} of documents are longer than {most} tokens: {what}{loss}"


def found(account: Account) -> list[str]:
    """Say what was done with long documents; empty where there were none, or all were kept."""
    sentences: list[str] = []
    for reason, done in CUT.items():
        if many := account.normalized.get(reason):
            sentences.append(
                f"long documents {done}: {count(many)} of {count(account.kept)}{_dropped(account, done)}"
            )
    for reason, why in (
        ("too_long", "too long"),
        ("nothing_to_learn", "nothing to learn is left of them"),
    ):
        if many := account.filtered.get(reason):
            sentences.append(f"documents left out, {why}: {count(many)}{_dropped(account, reason)}")
    return sentences


def _dropped(account: Account, reason: str) -> str:
    tokens = account.dropped.get(reason)
    if not tokens:
        return ""
    return f"; {count(tokens)} of {count(account.tokens)} tokens dropped ({percent(tokens, account.tokens)})"


def _share(part: int, whole: int) -> str:
    digits = 0 if part * 100 >= 10 * whole else 1
    return "less than 0.1%" if part * 1000 < whole else percent(part, whole, digits)
