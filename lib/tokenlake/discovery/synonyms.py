"""What the field calls the same thing: a role, and the names its column usually has, the likeliest first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tokenlake.discovery.names import normalized

SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "text": (
            "content",
            "document",
            "raw_content",
            "raw_text",
            "body",
            "page_content",
            "full_text",
            "plain_text",
            "doc",
            "article",
            "passage",
            "story",
            "paragraph",
            "markdown",
            "code",
            "source_code",
            "sentence",
        ),
        "messages": (
            "conversations",
            "chat",
            "dialog",
            "dialogue",
            "turns",
            "chat_history",
            "thread",
        ),
        "instruction": ("prompt", "question", "query", "problem", "task", "user_prompt", "human"),
        "input": ("context", "background", "premise"),
        "output": (
            "response",
            "answer",
            "completion",
            "target",
            "solution",
            "reply",
            "generation",
            "assistant",
        ),
        "system": ("system_prompt", "system_message"),
        "chosen": ("chosen_response", "preferred", "accepted", "winner", "better"),
        "rejected": ("rejected_response", "dispreferred", "loser", "worse"),
        "label": ("class", "category", "target_label"),
        "id": (
            "uid",
            "uuid",
            "guid",
            "doc_id",
            "document_id",
            "record_id",
            "example_id",
            "idx",
            "index",
            "key",
        ),
        "url": ("uri", "link", "source_url", "href", "web_url"),
        "lang": ("language", "lang_code", "language_code", "locale"),
        "source": ("origin", "corpus", "dataset", "data_source", "domain", "provenance"),
        "timestamp": (
            "date",
            "time",
            "datetime",
            "created",
            "created_at",
            "published",
            "published_at",
            "crawl_date",
            "crawl_timestamp",
        ),
    }
)
"""Role to other names, in the order of preference. A name belongs to one role."""

ROLES: Final = tuple(SYNONYMS)


def _by_name() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for role, names in SYNONYMS.items():
        for rank, name in enumerate((role, *names)):
            found.setdefault(normalized(name), (role, rank))
    return found


_BY_NAME: Final = _by_name()


def role_of(name: str) -> str | None:
    """Return the role that a name stands for by itself, None where it says nothing."""
    return _BY_NAME.get(normalized(name), (None, 0))[0]


def rank_of(name: str) -> int:
    """Return how usual a name is for its role, 0 the most; behind all others where it says nothing."""
    return _BY_NAME.get(normalized(name), (None, 1 << 16))[1]


def names_of(wanted: str) -> tuple[str, ...]:
    """Return a wanted name and everything else that its role is called, without repeats."""
    role = role_of(wanted)
    return (wanted,) if role is None else tuple(dict.fromkeys((wanted, role, *SYNONYMS[role])))
