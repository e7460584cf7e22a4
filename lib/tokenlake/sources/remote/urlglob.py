"""Globs over the names of objects: what `glob` does for files, done to a listing."""

from __future__ import annotations

import re
from typing import Final

_MAGIC: Final = re.compile(r"[*?\[]")


def has_wildcard(path: str) -> bool:
    """Say whether a path has one of ``*``, ``?`` and ``[``."""
    return _MAGIC.search(path) is not None


def static_folder(pattern: str) -> str:
    """Return the folder that all matches are in, without a slash at its end; "" for the top."""
    folders = pattern.split("/")[:-1]
    for index, part in enumerate(folders):
        if has_wildcard(part):
            return "/".join(folders[:index])
    return "/".join(folders)


def static_prefix(pattern: str) -> str:
    """Return what all matches begin with, which need not be a whole folder."""
    return _MAGIC.split(pattern, maxsplit=1)[0]


def is_flat(pattern: str) -> bool:
    """Say whether matches lie in the one folder that the pattern names."""
    folder, _, name = pattern.rpartition("/")
    return not has_wildcard(folder) and name != "**"


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Return what matches whole paths.

    ``*`` and ``?`` stop at slashes, ``**`` as a whole component stands for any number of folders, also
    none, and no wildcard stands for a dot at the beginning of a name.
    """
    parts = pattern.split("/")
    regex = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            regex += r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else "")
        else:
            regex += _component(part) + ("" if last else "/")
    return re.compile(regex, re.DOTALL)


def _component(part: str) -> str:
    regex = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
    at = 0
    while at < len(part):
        char = part[at]
        stop = part.find("]", at + 2) if char == "[" else -1
        if stop > 0:
            regex += _choice(part[at + 1 : stop])
            at = stop
        elif char == "*":
            regex += "[^/]*"
        else:
            regex += "[^/]" if char == "?" else re.escape(char)
        at += 1
    return regex


def _choice(inside: str) -> str:
    negated = inside.startswith("!")
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside.removeprefix("!"))
    return f"(?!/)[{'^' if negated else ''}{body}]"
