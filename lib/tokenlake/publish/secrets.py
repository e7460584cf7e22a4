"""What looks like a secret: known shapes of credentials, values behind telling names, and this process's own.

A finding says where and of which kind, never what. The shapes are those that the issuers document; each is looked for
only where a fixed part of it occurs, so that a text of megabytes costs little.

Looking for secrets in all that is about to be published: texts and metadata whole, rows by sample.

Texts (card, configuration, manifest, tokenizer, ledger) and the Parquet footers are ours to mend, and one finding in
them refuses the push. Rows are training data, in which people's secrets are not rare and made-up ones are common: of
them a sample is decoded, and what is found is told.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast, final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.config.references import CREDENTIAL, HIDDEN, known_secrets
from tokenlake.errors import ConfigError, IntegrityError, MissingExtraError
from tokenlake.loader.dataset import Dataset
from tokenlake.publish.files import Content, Published
from tokenlake.reading.version import verified_bytes
from tokenlake.store.base import ReadStore
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import MANIFEST, TOKENIZER, Layout
from tokenlake.store.manifest import Manifest

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


_GOLDEN: Final = 0.6180339887498949  # steps of it spread evenly, however many there are
_SHOWN: Final = 10
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks like a secret; never the secret.

    Attributes:
        path: the file, relative to the version.
        place: where in it: ``line 3``, a path of keys, ``row 17``.
        kind: of what it looks like.
    """

    path: str
    place: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.kind}"


def scan_texts(files: Iterable[Content], detector: Detector) -> list[Finding]:
    """Return what looks like a secret in files whose bytes are held, each place and kind once."""
    found: dict[Finding, None] = {}
    for file in files:
        text = (file.data or b"").decode("utf-8", errors="replace")
        for match in detector.shapes(text):
            found[Finding(file.path, _line(text, match.start), match.kind)] = None
        for place, kind in _named(file.path, text, detector):
            found[Finding(file.path, place, kind)] = None
    return list(found)


def scan_footers(store: ReadStore, version: Published, detector: Detector) -> list[Finding]:
    """Return what looks like a secret in the key-value metadata and the column names of the shards.

    Raises:
        IntegrityError: a footer cannot be read.
    """
    found: list[Finding] = []
    for shard in version.manifest.files:
        key = version.layout.key(shard.path)
        with store.open(key, size=shard.bytes, sha256=shard.sha256) as stream:
            try:
                schema = pq.ParquetFile(stream).schema_arrow
            except _DAMAGE as error:
                raise IntegrityError(
                    f"{key}: its Parquet footer cannot be read ({error}); run `tokenlake verify`", file=key
                ) from error
        for place, text in _metadata(schema):
            matches = [*detector.shapes(text), *detector.named(text)]
            found += [Finding(shard.path, place, match.kind) for match in matches]
    return list(dict.fromkeys(found))


def scan_rows(
    store: ReadStore,
    manifest: Manifest,
    number: int,
    detector: Detector,
    on_rows: Callable[[int], None] | None = None,
) -> list[Finding]:
    """Decode `number` rows of each shard and return what looks like a secret in them; 0: look at none.

    Rows of one row group of each shard are read, verified by page; which ones depends on nothing but the manifest.

    Raises:
        IntegrityError: a page is damaged.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    found: dict[Finding, None] = {}
    for split in manifest.splits if number else ():
        with Dataset(store, manifest, split) as rows:
            texts = _Texts(store, manifest)
            first = 0
            for index, shard in enumerate(s for s in manifest.files if s.split == split):
                start, stop = _sample(shard, index, number)
                table = rows.read(first + start, first + stop)
                for row, text in texts.of(table):
                    for match in detector.shapes(text):
                        found[Finding(shard.path, f"row {start + row}", match.kind)] = None
                first += shard.rows
                if on_rows is not None:
                    on_rows(stop - start)
    return list(found)


def require_none(findings: list[Finding], what: str) -> None:
    """Raise ConfigError if anything was found; the message says where and of which kind."""
    if not findings:
        return
    lines = "".join(f"\n  {finding}" for finding in findings[:_SHOWN])
    more = f"\n  and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    raise ConfigError(
        f"nothing was pushed: {what} what looks like a secret, in these places:{lines}{more}\n"
        "Revoke it if it is one, take it out of what the version was built from (input names, kept columns, special "
        "tokens, chat template, the name of the tokenizer), and build a new version; a committed one never changes.",
        findings=[[finding.path, finding.place, finding.kind] for finding in findings],
    )


def _line(text: str, start: int) -> str:
    return f"line {text.count(chr(10), 0, start) + 1}"


def _named(path: str, text: str, detector: Detector) -> Iterator[tuple[str, str]]:
    if not path.endswith(".json"):
        yield from ((_line(text, match.start), match.kind) for match in detector.named(text))
        return
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text  # the tokenizer's loader would refuse it; it is searched as a text all the same
    if path == MANIFEST or path.startswith("ledger/"):
        # Their input tables hold version tokens of files, which are hashes: no secrets, though they look random.
        value = {key: item for key, item in value.items() if key not in ("inputs", "sha256")}
    yield from ((place, kind) for kind, place in detector.in_json(value))


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    yield "column names", "\n".join(schema.names)
    tables: list[tuple[str, Any]] = [("metadata", schema.metadata or {})]
    tables += [
        (f"metadata of {name!r}", field.metadata or {})
        for name, field in zip(schema.names, schema, strict=True)
    ]
    for place, table in tables:
        for key, value in table.items():
            name = key.decode("utf-8", errors="replace")
            yield f"{place} {name!r}", f"{name}={value.decode('utf-8', errors='replace')}"


def _sample(shard: ShardEntry, index: int, number: int) -> tuple[int, int]:
    """Return rows ``start .. stop`` of one row group of the shard."""
    if not shard.rows:
        return 0, 0
    group = int((index + 1) * _GOLDEN % 1 * len(shard.row_groups))
    low = shard.row_groups[group]
    high = (*shard.row_groups, shard.rows)[group + 1]
    start = low + int((index + 1) * _GOLDEN * 7 % 1 * max(high - low - number + 1, 1))
    return start, min(start + number, high)


@final
class _Texts:
    """The texts of stored rows: decoded ids, and columns of text as they are."""

    def __init__(self, store: ReadStore, manifest: Manifest) -> None:
        self._store, self._manifest = store, manifest

    def of(self, table: pa.Table) -> Iterator[tuple[int, str]]:
        """Yield (row, text); where sources have different tokenizers, a row is decoded with each of them."""
        for name in table.schema.names:
            column: Any = table.column(name)
            kind = column.type
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                yield from ((row, text) for row, text in enumerate(column.to_pylist()) if text)
            elif _holds_ids(name):
                ids = [list(row or ()) for row in column.to_pylist()]
                for tokenizer in self._tokenizers:
                    yield from enumerate(tokenizer.decode_batch(ids, skip_special_tokens=False))

    @cached_property
    def _tokenizers(self) -> list[Any]:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError("decoding rows needs tokenizers: pip install 'tokenlake[etl]'") from error
        found = {
            entry.sha256: path
            for path, entry in self._manifest.other_files.items()
            if path.startswith(f"{TOKENIZER}/") and path.endswith("/tokenizer.json")
        }
        layout = Layout(self._manifest.dataset, self._manifest.version)
        return [
            Tokenizer.from_buffer(verified_bytes(self._store, layout, path, digest))
            for digest, path in found.items()
        ]


def _holds_ids(name: str) -> bool:
    return name != "segment_ids" and (name.endswith("_ids") or name.startswith("input_ids"))
