"""What looks like a secret in a text: shapes of credentials, values behind telling names, this process's own secrets.

A secret is looked for as it is written, and also

- cut into pieces: string literals that are put together (``"ghp_" + "..."``), and lines that break inside it;
- in base64 or hexadecimal digits, wrapped lines and two layers included.

Nothing that is found is kept or shown.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import quote

from tokenlake.base.secrets import CREDENTIAL, HIDDEN, known_secrets

_SHORTEST: Final = 8  # characters; a shorter value of a variable is likely to be an ordinary word
LONG_ENOUGH: Final = 16
"""Characters of a value behind a telling name, at least."""
_ENTROPY: Final = 3.2  # bits per character of such a value; words have less

# As the issuers document them: kind, texts of which one occurs in each (a search for those is fast), and the shape.
_SHAPES: Final = r"""
AWS access key | AKIA ASIA ABIA ACCA | (?<![A-Za-z0-9+/])(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9+/])
Hugging Face token | hf_ api_org_ | (?<!\w)(?:hf_|api_org_)[A-Za-z0-9]{30,}
GitHub token | ghp_ gho_ ghu_ ghs_ ghr_ | (?<!\w)gh[pousr]_[A-Za-z0-9]{36,}
GitHub token | github_pat_ | (?<!\w)github_pat_[A-Za-z0-9_]{50,}
GitLab token | glpat- gldt- glrt- glft- | (?<!\w)gl(?:pat|dt|rt|ft)-[A-Za-z0-9_-]{20,}
GitLab token | glcbt- glptt- glsoat- glagent- | (?<!\w)gl(?:cbt|ptt|soat|agent)-[A-Za-z0-9_-]{20,}
API key (sk-) | sk- | (?<![\w-])sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Za-z]{3})[A-Za-z0-9_-]{20,}
SendGrid key | SG. | (?<!\w)SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}
Stripe key | _live_ _test_ | (?<!\w)[rs]k_(?:live|test)_[A-Za-z0-9]{20,}
Stripe webhook secret | whsec_ | (?<!\w)whsec_[A-Za-z0-9+/=]{24,}
Mailchimp key | -us | (?<!\w)[0-9a-f]{32}-us[0-9]{1,2}(?!\w)
Twilio key | SK AC | (?<!\w)(?:SK|AC)[0-9a-f]{32}(?!\w)
DigitalOcean token | _v1_ | (?<!\w)do[opr]_v1_[a-f0-9]{64}
Databricks token | dapi | (?<!\w)dapi[0-9a-f]{32}(?!\w)
Shopify token | shp | (?<!\w)shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}
Square token | sq0 | (?<!\w)sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,}
Telegram token | :AA | (?<!\w)[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![\w-])
Vault token | hvs. hvb. | (?<!\w)hv[sb]\.[A-Za-z0-9_-]{24,}
Grafana token | glsa_ glc_ | (?<!\w)gl(?:sa|c)_[A-Za-z0-9_+/=]{32,}
Notion token | ntn_ | (?<!\w)ntn_[A-Za-z0-9]{40,}
Linear key | lin_api_ | (?<!\w)lin_api_[A-Za-z0-9]{40}
Replicate token | r8_ | (?<!\w)r8_[A-Za-z0-9]{37}(?!\w)
Doppler token | dp. | (?<!\w)dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.-]{40,}
age key | AGE-SECRET-KEY-1 | (?<!\w)AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}
Google API key | AIza | (?<![\w-])AIza[A-Za-z0-9_-]{35}(?![\w-])
Google OAuth token | ya29. | (?<![\w-])ya29\.[A-Za-z0-9_-]{20,}
Google service account | service_account | "type"\s*:\s*"service_account"
private key | PRIVATE KEY | -----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----
JSON web token | eyJ | (?<![\w-])eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}
Slack token | xox | (?<![\w-])xox[abdeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}
Slack token | xapp- | (?<![\w-])xapp-[0-9]-[A-Za-z0-9-]{20,}
Slack token | hooks.slack.com | hooks\.slack\.com/services/T[A-Za-z0-9_/]{20,}
npm token | npm_ | (?<!\w)npm_[A-Za-z0-9]{36,}
PyPI token | pypi- | (?<!\w)pypi-AgE(?:IcHlwaS5vcmc|NdGVzdC5weXBpLm9yZ)[A-Za-z0-9_-]{30,}
Azure storage key | AccountKey= | AccountKey=[A-Za-z0-9+/]{40,}
signed URL | sig= Signature= | [?&](?:sig|X-Amz-Signature|X-Goog-Signature|Signature)=[A-Za-z0-9%+/_-]{20,}
URL with a password | :// | [A-Za-z][\w+.-]{0,30}://[^\s/:@'"<>{}\[\]()]{0,64}:(?P<value>[^\s/:@'"<>]{3,128})@[\w\[]
"""


@final
@dataclass(frozen=True, slots=True)
class _SecretShape:
    """What the credentials of one issuer look like.

    Attributes:
        kind: Name for people.
        hints: Texts of which one occurs in each; a search for those is fast.
        pattern: The whole credential.
        may_be_split: Whether pieces of it are put together before it is looked for: it is one word.
    """

    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    may_be_split: bool


_PHRASES: Final = frozenset({"Google service account", "private key", "signed URL", "URL with a password"})


def _parsed_shapes() -> tuple[_SecretShape, ...]:
    shapes: list[_SecretShape] = []
    for line in _SHAPES.strip().splitlines():
        kind, hints, pattern = line.split(" | ", 2)
        compiled = re.compile(pattern, re.ASCII)
        shapes.append(_SecretShape(kind, tuple(hints.split()), compiled, kind not in _PHRASES))
    return tuple(shapes)


_KNOWN: Final = _parsed_shapes()
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


# Between two pieces of a credential: string literals that follow each other or are put together, and the end of a line.
_QUOTE: Final = r"\\?[\"'`]"
_LINE_END: Final = r"\\?\r?\n[ \t]*"
_JOINT: Final = re.compile(
    rf"{_QUOTE}[ \t]*(?:{_LINE_END})?(?:\+|\.\.?|&|~|\|\|)?[ \t]*(?:{_LINE_END})?{_QUOTE}"
    rf"|(?<=[\w.+/=-])(?:{_LINE_END}(?:(?:[#>*]|//)[ \t]*)?|\\n[ \t]*|[\u00ad\u200b-\u200d\ufeff]+)(?=[\w.+/=-])"
)
_WORD: Final = re.compile(r"[\w.+/=~:-]+")
_LAST_WORD: Final = re.compile(r"[\w.+/=~:-]+\Z")
_HINT: Final = re.compile("|".join(re.escape(hint) for shape in _KNOWN for hint in shape.hints))
_LONGEST: Final = 512  # characters of the first piece that are looked at
_MOST_JOINTS: Final = 6  # in one credential: a list of words that happens to look like one has more

# A run of base64, lines that were wrapped at 60 letters or more taken together; and of hexadecimal digits.
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/_-]{60,}\\?\r?\n[ \t]*)*[A-Za-z0-9+/_-]{8,}")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{32,}")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]+")
_LEAST_ENCODED: Final = 24  # letters of base64 that hold a credential
_PRINTABLE: Final = re.compile(rb"[\t\n\r -~]{16,}")
_LAYERS: Final = 2


@final
class Detector:
    """Looks for secrets in texts: ``Detector(os.environ).shapes("key: AKIA...")``.

    Nothing that it finds is kept, and its repr shows nothing that it knows. What it yields is (kind, offset).
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Learn the secrets of this process: of resolved references, and of an environment."""
        own = dict.fromkeys(known_secrets(), "a secret that this process uses")
        for name, value in (environment or {}).items():
            found = [each for each in _IN_URL.findall(value) if not _PLACEHOLDER.fullmatch(each)]
            is_place = _PLACES.search(name) or value.startswith(("/", "~", "./"))
            if _TELLING.search(name) and not is_place:
                found.append(value.strip())
            own |= dict.fromkeys(found, f"the value of the environment variable {name}")
        self._own: dict[str, str] = {}
        for secret, kind in own.items():
            if len(secret) >= _SHORTEST:
                self._own |= dict.fromkeys(_spellings(secret), kind)
                self._own |= dict.fromkeys(_encodings(secret), f"{kind}, encoded")
        self._known = sum(len(secret) >= _SHORTEST for secret in own)

    def __repr__(self) -> str:
        return f"Detector({self._known} secrets of this process)"

    def shapes(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield what has the shape of a credential, and what is a secret of this process."""
        for shape in _KNOWN:
            for start, _ in _matches(shape, text):
                yield shape.kind, start
        for secret, kind in self._own.items():
            if (start := text.find(secret)) >= 0:
                yield kind, start
        yield from _in_pieces(text)
        yield from _encoded(text, _LAYERS)

    def named(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield values that look random and stand behind names such as token, secret or password."""
        for found in _NAMED.finditer(text):
            name = found["name"].rpartition(".")[2].strip("-")  # storage.aws_secret -> aws_secret
            if CREDENTIAL.search(name) and is_random(found["value"]):
                yield f"value of {name!r}", found.start("value")

    def everywhere(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield both."""
        yield from self.shapes(text)
        yield from self.named(text)


def is_random(value: str) -> bool:
    """Return whether a value may be a generated secret: long, of letters and digits, and of no words."""
    if len(value) < LONG_ENOUGH or _HASH.fullmatch(value) or re.search(r"\s", value):
        return False
    if not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) >= _ENTROPY


def _spellings(secret: str) -> set[str]:
    return {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}


def _encodings(secret: str) -> set[str]:
    """Return a secret in hexadecimal digits, and in base64 as it stands in a longer text: by where it begins."""
    data = secret.encode(errors="replace")
    encodings = {data.hex(), data.hex().upper()}
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode()
        # Letters that bytes before and behind have a part in are left out.
        start = -(-before * 8 // 6)
        stop = (before + len(data)) * 8 // 6
        encodings |= {text[start:stop], text[start:stop].replace("+", "-").replace("/", "_")}
    return encodings


def _matches(shape: _SecretShape, text: str) -> Iterator[tuple[int, int]]:
    """Yield where credentials of a shape begin and end."""
    if not any(hint in text for hint in shape.hints):
        return
    for match in shape.pattern.finditer(text):
        value: str | None = match.groupdict().get("value")
        if value is None or not (value == HIDDEN or _PLACEHOLDER.fullmatch(value)):
            yield match.span()


def _in_pieces(text: str) -> Iterator[tuple[str, int]]:
    """Yield credentials that are cut into pieces, at the place of their first piece.

    The text is cut at its joints. A credential begins in the last word of a piece and ends in the first word of a later
    one; the pieces between are one word each::

        token = "ghp_ | 0123 | 4567"          # | is a joint: candidates are ghp_0123 and ghp_01234567
    """
    joints = list(_JOINT.finditer(text))
    stops = [joint.start() for joint in joints[1:]] + [len(text)]
    for index, joint in enumerate(joints):
        before = joints[index - 1].end() if index else 0
        first = _LAST_WORD.search(text, max(before, joint.start() - _LONGEST), joint.start())
        if first is None:
            continue
        candidate = first[0]
        for after in range(index, min(index + _MOST_JOINTS, len(joints))):
            start, stop = joints[after].end(), stops[after]
            word = _WORD.match(text, start, stop)
            if word is None:
                break
            candidate += word[0]
            if _HINT.search(candidate):
                for kind in _kinds_across(candidate, len(first[0])):
                    yield f"{kind}, in pieces", first.start()
            if word.end() < stop:
                break


def _kinds_across(candidate: str, joint: int) -> Iterator[str]:
    """Yield the kinds of credentials that begin before a place in a text and end behind it."""
    for shape in _KNOWN:
        if shape.may_be_split:
            for start, stop in _matches(shape, candidate):
                if start < joint < stop:
                    yield shape.kind


def _encoded(text: str, layers: int) -> Iterator[tuple[str, int]]:
    """Yield credentials in base64 or hexadecimal digits, at the place where these begin."""
    for run in _BASE64.finditer(text):
        letters = _NOT_BASE64.sub("", run[0].replace("-", "+").replace("_", "/"))
        if len(letters) < _LEAST_ENCODED:
            continue
        # What stands before may be letters of base64, too: a path, or a word with a dash.
        for skipped in range(4):
            whole = (len(letters) - skipped) // 4 * 4
            data = base64.b64decode(letters[skipped : skipped + whole] + _rest(letters[skipped + whole :]))
            for kind in _in_bytes(data, layers):
                yield f"{kind}, in base64", run.start()
    for run in _HEX.finditer(text):
        for skipped in range(2):
            digits = run[0][skipped:]
            for kind in _in_bytes(bytes.fromhex(digits[: len(digits) // 2 * 2]), layers):
                yield f"{kind}, in hexadecimal digits", run.start()


def _rest(letters: str) -> str:
    """Return the last letters of a run with their padding; one alone holds no byte."""
    return letters + "=" * (4 - len(letters)) if len(letters) > 1 else ""


def _in_bytes(data: bytes, layers: int) -> Iterator[str]:
    """Yield the kinds of credentials in what was decoded."""
    for printable in _PRINTABLE.finditer(data):
        text = printable[0].decode("ascii")
        for shape in _KNOWN:
            for _ in _matches(shape, text):
                yield shape.kind
        if layers > 1:
            for kind, _ in _encoded(text, layers - 1):
                yield kind
