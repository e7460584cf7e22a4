"""What looks like a secret: known shapes of credentials, values behind telling names, and this process's own.

A finding says where and of which kind, never what. The shapes are those that the issuers document; each is looked for
only where a fixed part of it occurs, so that a text of megabytes costs little.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, final
from urllib.parse import quote

from tokenlake.config.references import CREDENTIAL, HIDDEN, known_secrets

_SHORTEST: Final = 8  # characters; a shorter value of a variable is likely to be an ordinary word
_LONG_ENOUGH: Final = 16  # characters of a value behind a telling name
_ENTROPY: Final = 3.2  # bits per character of such a value; words have less


@final
@dataclass(frozen=True, slots=True)
class _Shape:
    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]


def _shape(kind: str, hints: str, pattern: str) -> _Shape:
    return _Shape(kind, tuple(hints.split()), re.compile(pattern))


_SHAPES: Final = (
    _shape(
        "AWS access key",
        "AKIA ASIA ABIA ACCA",
        r"(?<![A-Za-z0-9+/])(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9+/])",
    ),
    _shape("Hugging Face token", "hf_ api_org_", r"(?<![A-Za-z0-9_])(?:hf_|api_org_)[A-Za-z0-9]{30,}"),
    _shape(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})",
    ),
    _shape("GitLab token", "glpat-", r"(?<![A-Za-z0-9_])glpat-[A-Za-z0-9_-]{20,}"),
    _shape(
        "API key (sk-)",
        "sk-",
        r"(?<![A-Za-z0-9_-])sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Za-z]{3})[A-Za-z0-9_-]{20,}",
    ),
    _shape(
        "Stripe key",
        "_live_",
        r"(?<![A-Za-z0-9_])[rs]k_live_[A-Za-z0-9]{20,}",
    ),
    _shape("Google API key", "AIza", r"(?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _shape("Google OAuth token", "ya29.", r"(?<![A-Za-z0-9_-])ya29\.[A-Za-z0-9_-]{20,}"),
    _shape("Google service account", "service_account", r'"type"\s*:\s*"service_account"'),
    _shape("private key", "PRIVATE KEY", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    _shape(
        "JSON web token",
        "eyJ",
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    ),
    _shape(
        "Slack token",
        "xox hooks.slack.com",
        r"(?<![A-Za-z0-9_-])xox[abeoprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/T[A-Za-z0-9_/]{20,}",
    ),
    _shape("npm token", "npm_", r"(?<![A-Za-z0-9_])npm_[A-Za-z0-9]{36,}"),
    _shape("PyPI token", "pypi-", r"(?<![A-Za-z0-9_])pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{30,}"),
    _shape("Azure storage key", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{40,}"),
    _shape(
        "signed URL",
        "sig= Signature=",
        r"[?&](?:sig|X-Amz-Signature|X-Goog-Signature|Signature)=[A-Za-z0-9%+/_-]{20,}",
    ),
    _shape(
        "URL with a password",
        "://",
        r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@'\"<>{}\[\]()]{0,64}:(?P<value>[^\s/:@'\"<>]{3,128})@[A-Za-z0-9\[]",
    ),
)
_PLACEHOLDER: Final = re.compile(
    r"[*xX.]+|\$.*|<.*|\{.*|%.*|(?:your[_-]?|my[_-]?)?(?:password|passwd|secret|pass|pwd|token)",
    re.IGNORECASE,
)
# password: x, "api_key" = "x", SECRET_TOKEN=x; what may stand in a value is what such secrets are made of.
_NAMED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]{0,40}(?:secret|passw(?:or)?d|token|credentials?|key)[A-Za-z0-9_]{0,20})"
    r"\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?(?P<value>[A-Za-z0-9+/=_~.-]{16,512})",
    re.IGNORECASE,
)
_HASH: Final = re.compile(r"(?:sha256|sha1|md5|git|etag)[:-].*|[0-9]+")
_TELLING: Final = re.compile(
    r"secret|passw|credential|private_?key|access_?key|api_?key|connection_string|(^|_)(token|pat|pwd|key|auth)$",
    re.IGNORECASE,
)
_PLACES: Final = re.compile(r"(path|file|dir|home|sock|url|parallelism|fingerprint|id)$", re.IGNORECASE)
_IN_URL: Final = re.compile(r"://[^\s/:@]*:([^\s/@]{8,})@")


@final
@dataclass(frozen=True, slots=True)
class Match:
    """Something that looks like a secret: its kind, and where it begins in the text."""

    kind: str
    start: int


@final
class Detector:
    """Looks for secrets in texts.

    ::

        detector = Detector(os.environ)
        [match.kind for match in detector.shapes("key: AKIA...")]

    Nothing that it finds is kept, and its repr shows nothing that it knows.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Learn the secrets of this process: of resolved references, and of an environment."""
        self._own = dict.fromkeys(known_secrets(), "a secret that this process uses")
        for name, value in (environment or {}).items():
            for secret in _secrets_of(name, value):
                self._own[secret] = f"the value of the environment variable {name}"
        self._own = {secret: kind for secret, kind in self._own.items() if len(secret) >= _SHORTEST}

    def __repr__(self) -> str:
        return f"Detector({len(self._own)} secrets of this process)"

    def shapes(self, text: str) -> Iterator[Match]:
        """Yield what has the shape of a credential, and what is a secret of this process."""
        for shape in _SHAPES:
            if any(hint in text for hint in shape.hints):
                for found in shape.pattern.finditer(text):
                    if not _is_placeholder(found):
                        yield Match(shape.kind, found.start())
        for secret, kind in self._own.items():
            for form in {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}:
                if (start := text.find(form)) >= 0:
                    yield Match(kind, start)

    def named(self, text: str) -> Iterator[Match]:
        """Yield values that look random and stand behind names such as token, secret or password."""
        for found in _NAMED.finditer(text):
            if CREDENTIAL.search(_word(found["name"])) and _is_random(found["value"]):
                yield Match(f"value of {_word(found['name'])!r}", found.start("value"))

    def in_json(self, value: object, path: str = "") -> Iterator[tuple[str, str]]:
        """Yield (kind, path of keys) of values behind telling names in parsed JSON."""
        if isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                place = f"{path}.{key}".lstrip(".")
                if isinstance(item, str) and CREDENTIAL.search(key) and _is_random(item):
                    yield f"value of {key!r}", place
                elif isinstance(item, dict | list | str):
                    yield from self.in_json(item, place)
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[Any]", value)):
                if isinstance(item, dict | list | str):
                    yield from self.in_json(item, f"{path}[{index}]")
        elif isinstance(value, str) and len(value) >= _LONG_ENOUGH:
            yield from ((match.kind, path) for match in self.named(value))


def _secrets_of(name: str, value: str) -> Iterable[str]:
    if _TELLING.search(name) and not _PLACES.search(name) and not value.startswith(("/", "~", "./")):
        yield value.strip()
    yield from (password for password in _IN_URL.findall(value) if not _PLACEHOLDER.fullmatch(password))


def _is_placeholder(found: re.Match[str]) -> bool:
    value = found.groupdict().get("value")
    return value is not None and (value == HIDDEN or _PLACEHOLDER.fullmatch(value) is not None)


def _word(name: str) -> str:
    """``storage.aws_secret`` -> ``aws_secret``."""
    return name.rpartition(".")[2].strip("-")


def _is_random(value: str) -> bool:
    """Return whether a value may be a generated secret: long, of letters and digits, and of no words."""
    if len(value) < _LONG_ENOUGH or _HASH.fullmatch(value) or re.search(r"\s", value):
        return False
    if not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts) >= _ENTROPY
