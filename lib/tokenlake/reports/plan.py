"""A plan in a few words: how far it is, and what becomes of documents that are longer than ``max_length``."""

from __future__ import annotations

from typing import Final

from tokenlake import numbers
from tokenlake.config.resolved import ResolvedTokenizer
from tokenlake.numbers import count, percent
from tokenlake.store.account import Account

#: How the account calls documents that were cut (``normalized``), and what was done to them.
CUT: Final = {"long_documents_truncate": "truncated", "long_documents_split": "split"}

_AT: Final = {
    "simple": "at a token",
    "word": "between words",
    "sentence": "between sentences",
    "smart": "between sentences or words",
}
_UNLEARNED: Final = "those without loss are left out"
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


def expected(
    settings: ResolvedTokenizer, documents: int, long: int, tokens: int, dropped: int, *, masked: bool = False
) -> str:
    """Say what a build will do with long documents, and about how many tokens that costs.

    Args:
        documents, tokens: about how many there are, before the policy.
        long, dropped: about how many of them are long, and how many are dropped.
        masked: whether only a part of a document's tokens bears loss.
    """
    if settings.long_documents == "keep":
        return "kept whole, nothing is dropped"
    what = {
        "truncate": f"truncated {_AT[settings.truncation_strategy]}, {_AWAY[settings.truncation_side]}",
        "split": f"split into pieces, {_UNLEARNED if masked else 'nothing is dropped'}",
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
    if "nothing_to_learn" in account.dropped and not account.filtered.get("nothing_to_learn"):
        sentences.append(f"pieces left out, nothing to learn in them{_dropped(account, 'nothing_to_learn')}")
    return sentences


def _dropped(account: Account, reason: str) -> str:
    tokens = account.dropped.get(reason)
    if not tokens:
        return ""
    return f"; {count(tokens)} of {count(account.tokens)} tokens dropped ({percent(tokens, account.tokens)})"


def _share(part: int, whole: int) -> str:
    digits = 0 if part * 100 >= 10 * whole else 1
    return "less than 0.1%" if part * 1000 < whole else percent(part, whole, digits)


_DOING: Final = {
    "listing": "looking for files",
    "hashing": "hashing",
    "splitting": "reading footers",
    "counting": "counting records",
}


def planning_line(source: str, step: str, files: int, all_files: int, bytes_: int, all_bytes: int) -> str:
    """``web: hashing, 31,204 of 100,000 files, 1.20 GiB of 20.1 GiB``; totals of 0 are not known yet.

    Args:
        source: its name.
        step: ``listing``, ``hashing``, ``splitting`` or ``counting``.
        files, all_files, bytes_, all_bytes: done so far, and in all.
    """
    done = numbers.plural(all_files or files, "file")
    if all_files:
        done = f"{numbers.count(files)} of {done}"
    size = numbers.size(bytes_) if bytes_ or all_bytes else ""
    if all_bytes:
        size = f"{size} of {numbers.size(all_bytes)}"
    return ", ".join(part for part in (f"{source}: {_DOING[step]}", done, size) if part)
