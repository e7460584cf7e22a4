"""Search of a text for secrets.

Three kinds are found: shapes of credentials, random values under names such as
``api_key``, and secrets of this process. A secret is found as it is written, and also

- cut into pieces: string literals that are put together (``"ghp_" + "..."``), and lines
  that break inside it;
- in base64 or hexadecimal digits, wrapped lines and two layers included.

Secrets that are found are neither stored nor shown.
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

_SHORTEST_OWN_SECRET: Final = 8  # characters; a shorter value may be an ordinary word

LONG_ENOUGH: Final = 16
"""Smallest number of characters of a random value."""

_ENTROPY: Final = 3.2  # bits per character of a random value; words have less

# Shapes as the issuers document them, one a line: kind, texts of which one occurs in
# each (a search for those is fast), and the pattern. A group `value` is the secret
# part.
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
    """Form of the credentials of one issuer.

    Attributes:
        kind: Name of the kind of credential, for messages.
        hints: Texts of which every credential contains one; the search for them is
            fast.
        pattern: Pattern of the whole credential.
        may_be_split: True for a credential that is one word, whose pieces are joined
            before the search.
    """

    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    may_be_split: bool


# Kinds of several words or lines. They are not looked for in joined pieces: the joints
# are a part of them.
_PHRASES: Final = frozenset(
    {"Google service account", "private key", "signed URL", "URL with a password"}
)


def _parsed_shapes() -> tuple[_SecretShape, ...]:
    """Return the shapes of the table above."""
    shapes: list[_SecretShape] = []
    for line in _SHAPES.strip().splitlines():
        kind, hints, pattern = line.split(" | ", 2)
        compiled = re.compile(pattern, re.ASCII)
        may_be_split = kind not in _PHRASES
        shape = _SecretShape(kind, tuple(hints.split()), compiled, may_be_split)
        shapes.append(shape)
    return tuple(shapes)


_KNOWN: Final = _parsed_shapes()
# Values that stand for a secret in documentation and in templates.
_PLACEHOLDER: Final = re.compile(
    r"[*xX.]+|\$.*|<.*|\{.*|%.*|(?:your[_-]?|my[_-]?)?(?:password|passwd|secret|pass|pwd|token)",
    re.IGNORECASE,
)

# A value under a name: password: x, "api_key" = "x", SECRET_TOKEN=x. Its characters are
# those of which generated secrets consist.
_NAMED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]{0,40}(?:secret|passw(?:or)?d|token|credentials?|key)[A-Za-z0-9_]{0,20})"
    r"\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?(?P<value>[A-Za-z0-9+/=_~.-]{16,512})",
    re.IGNORECASE,
)
# Values that look random and are no secrets: hashes, commits and numbers.
_HASH: Final = re.compile(r"(?:sha256|sha1|md5|git|etag)[:-].*|[0-9]+")

# Names of environment variables with secrets; and of those with places, which may
# contain such a word (SSH_AUTH_SOCK, TOKENIZERS_PARALLELISM).
_SECRET_NAME: Final = re.compile(
    r"secret|passw|credential|private_?key|access_?key|api_?key|connection_string|(^|_)(token|pat|pwd|key|auth)$",
    re.IGNORECASE,
)
_PLACES: Final = re.compile(
    r"(path|file|dir|home|sock|url|parallelism|fingerprint|id)$", re.IGNORECASE
)
_IN_URL: Final = re.compile(r"://[^\s/:@]*:([^\s/@]{8,})@")


# A joint between two pieces of a credential: the end of a string literal and the
# beginning of the next one, with an operator between them; or the end of a line.
_QUOTE: Final = r"\\?[\"'`]"
_LINE_END: Final = r"\\?\r?\n[ \t]*"
_JOINT: Final = re.compile(
    rf"{_QUOTE}[ \t]*(?:{_LINE_END})?(?:\+|\.\.?|&|~|\|\|)?[ \t]*(?:{_LINE_END})?{_QUOTE}"
    rf"|(?<=[\w.+/=-])(?:{_LINE_END}(?:(?:[#>*]|//)[ \t]*)?|\\n[ \t]*|[\u00ad\u200b-\u200d\ufeff]+)(?=[\w.+/=-])"
)
_WORD: Final = re.compile(r"[\w.+/=~:-]+")
_LAST_WORD: Final = re.compile(r"[\w.+/=~:-]+\Z")
# Any hint of any shape: most candidates have none, and need no further search.
_HINT: Final = re.compile(
    "|".join(re.escape(hint) for shape in _KNOWN for hint in shape.hints)
)
_LONGEST: Final = 512  # characters of the first piece that are searched
_MOST_JOINTS: Final = 6  # in one credential: a list of words has more

# A run of base64, lines that were wrapped at 60 letters or more taken together; and of
# hexadecimal digits.
_BASE64: Final = re.compile(
    r"(?:[A-Za-z0-9+/_-]{60,}\\?\r?\n[ \t]*)*[A-Za-z0-9+/_-]{8,}"
)
_HEX: Final = re.compile(r"[0-9A-Fa-f]{32,}")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]+")
_LEAST_ENCODED: Final = 24  # letters of base64 that hold a credential
_PRINTABLE: Final = re.compile(rb"[\t\n\r -~]{16,}")  # text in decoded bytes
_LAYERS: Final = 2  # encodings inside of each other


@final
class Detector:
    """Search of texts for secrets: ``Detector(os.environ).shapes("key: AKIA...")``.

    The methods yield pairs (kind of secret, character offset). The detector stores no
    secret that it finds, and its repr shows none that it knows.

    Args:
        environment: Environment variables, whose secrets are searched for. Those of
            resolved references always are.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        # Secrets of resolved references, then those of the environment.
        kinds = dict.fromkeys(known_secrets(), "a secret that this process uses")
        for variable, value in (environment or {}).items():
            for secret in _secrets_of_variable(variable, value):
                kinds[secret] = f"the value of the environment variable {variable}"

        # A secret is searched for in each way in which it may be written.
        # Spelling of a secret -> its kind. A secret is searched for in each way in
        # which it may be written.
        self._kind_by_spelling: dict[str, str] = {}
        self._secret_count = 0
        for secret, kind in kinds.items():
            if len(secret) >= _SHORTEST_OWN_SECRET:
                self._secret_count += 1
                for spelling in _spellings(secret):
                    self._kind_by_spelling[spelling] = kind
                for encoding in _encodings(secret):
                    self._kind_by_spelling[encoding] = f"{kind}, encoded"

    def __repr__(self) -> str:
        return f"Detector({self._secret_count} secrets of this process)"

    def shapes(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield text with the shape of a credential, and secrets of this process."""
        for shape in _KNOWN:
            for start, _ in _matches(shape, text):
                yield shape.kind, start
        for spelling, kind in self._kind_by_spelling.items():
            start = text.find(spelling)
            if start >= 0:
                yield kind, start
        yield from _in_pieces(text)
        yield from _encoded(text, _LAYERS)

    def named(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield random values under names such as token, secret or password."""
        for match in _NAMED.finditer(text):
            # storage.aws_secret -> aws_secret.
            key_name = match["name"].rpartition(".")[2].strip("-")
            if CREDENTIAL.search(key_name) and is_random(match["value"]):
                yield f"value of {key_name!r}", match.start("value")

    def everywhere(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield the results of :meth:`shapes` and :meth:`named`."""
        yield from self.shapes(text)
        yield from self.named(text)


def is_random(value: str) -> bool:
    """Return True if a value may be a generated secret.

    That is a long value of letters and digits, which is not made of words.
    """
    if len(value) < LONG_ENOUGH or _HASH.fullmatch(value) or re.search(r"\s", value):
        return False
    # Words have no digits, and numbers have no letters.
    if not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    # Entropy of its characters, in bits per character.
    entropy = 0.0
    for count in Counter(value).values():
        share = count / len(value)
        entropy -= share * math.log2(share)
    return entropy >= _ENTROPY


def _secrets_of_variable(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in the value of an environment variable.

    These are passwords in URLs, and the value itself if the variable's name says so.
    """
    for password in _IN_URL.findall(value):
        if not _PLACEHOLDER.fullmatch(password):
            yield password
    is_place = _PLACES.search(name) or value.startswith(("/", "~", "./"))
    if _SECRET_NAME.search(name) and not is_place:
        yield value.strip()


def _spellings(secret: str) -> set[str]:
    """Return a secret as it stands in plain text, in JSON and in a URL."""
    return {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}


def _encodings(secret: str) -> set[str]:
    """Return a secret in hexadecimal digits, and in base64 inside of a longer text.

    In base64 three bytes are four letters, so that a secret has three spellings: by the
    number of bytes before it, modulo 3.
    """
    secret_bytes = secret.encode(errors="replace")
    encodings = {secret_bytes.hex(), secret_bytes.hex().upper()}
    for bytes_before in range(3):
        letters = base64.b64encode(bytes(bytes_before) + secret_bytes).decode()
        # A letter holds 6 bits. Those that hold bits of the bytes before or after the
        # secret are left out.
        first_letter = -(-bytes_before * 8 // 6)
        end_letter = (bytes_before + len(secret_bytes)) * 8 // 6
        own_letters = letters[first_letter:end_letter]
        encodings.add(own_letters)
        encodings.add(own_letters.replace("+", "-").replace("/", "_"))  # for URLs
    return encodings


def _matches(shape: _SecretShape, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each credential of a shape, except placeholders."""
    if not any(hint in text for hint in shape.hints):
        return
    for match in shape.pattern.finditer(text):
        value: str | None = match.groupdict().get("value")
        is_placeholder = value is not None and (
            value == HIDDEN or _PLACEHOLDER.fullmatch(value)
        )
        if not is_placeholder:
            yield match.span()


def _in_pieces(text: str) -> Iterator[tuple[str, int]]:
    """Yield credentials that are cut into pieces, at the place of their first piece.

    The text is cut at its joints. A credential begins in the last word of a piece and
    ends in the first word of a later one; the pieces between are one word each::

        token = "ghp_ | 0123 | 4567"    # | is a joint

    The candidates are ``ghp_0123`` and ``ghp_01234567``.
    """
    joints = list(_JOINT.finditer(text))
    piece_ends = [joint.start() for joint in joints[1:]]
    piece_ends.append(len(text))
    for joint_index, joint in enumerate(joints):
        first_piece_start = 0
        if joint_index:
            first_piece_start = joints[joint_index - 1].end()
        first_word = _LAST_WORD.search(
            text, max(first_piece_start, joint.start() - _LONGEST), joint.start()
        )
        if first_word is None:
            continue

        # Add the first word of each later piece, as long as the pieces consist of one
        # word.
        candidate = first_word[0]
        for last_joint in range(
            joint_index, min(joint_index + _MOST_JOINTS, len(joints))
        ):
            piece_start = joints[last_joint].end()
            piece_end = piece_ends[last_joint]
            next_word = _WORD.match(text, piece_start, piece_end)
            if next_word is None:
                break
            candidate += next_word[0]
            if _HINT.search(candidate):
                for kind in _kinds_across(candidate, len(first_word[0])):
                    yield f"{kind}, in pieces", first_word.start()
            if next_word.end() < piece_end:
                break


def _kinds_across(candidate: str, joint_offset: int) -> Iterator[str]:
    """Yield the kinds of credentials that lie across an offset of a text.

    A credential on one side of the joint is found without joining the pieces.
    """
    for shape in _KNOWN:
        if shape.may_be_split:
            for start, stop in _matches(shape, candidate):
                if start < joint_offset < stop:
                    yield shape.kind


def _encoded(text: str, layers: int) -> Iterator[tuple[str, int]]:
    """Yield credentials in base64 or hexadecimal digits, at their first letter.

    Args:
        text: Text to search.
        layers: Number of encodings that may be nested.
    """
    for run in _BASE64.finditer(text):
        letters = _NOT_BASE64.sub("", run[0].replace("-", "+").replace("_", "/"))
        if len(letters) < _LEAST_ENCODED:
            continue
        # The run may begin with letters of a path or a word. Four letters hold three
        # bytes, so there are four ways.
        for skipped in range(4):
            complete_letters = (len(letters) - skipped) // 4 * 4
            end_letter = skipped + complete_letters
            decoded = base64.b64decode(
                letters[skipped:end_letter] + _padded(letters[end_letter:])
            )
            for kind in _in_bytes(decoded, layers):
                yield f"{kind}, in base64", run.start()
    # Two digits are a byte: there are two ways to begin.
    for run in _HEX.finditer(text):
        for skipped in range(2):
            digits = run[0][skipped:]
            decoded = bytes.fromhex(digits[: len(digits) // 2 * 2])
            for kind in _in_bytes(decoded, layers):
                yield f"{kind}, in hexadecimal digits", run.start()


def _padded(letters: str) -> str:
    """Return the last letters of a run with their padding.

    A single letter holds no byte.
    """
    if len(letters) < 2:
        return ""
    return letters + "=" * (4 - len(letters))


def _in_bytes(data: bytes, layers: int) -> Iterator[str]:
    """Yield the kinds of credentials in decoded bytes."""
    # Decoded bytes of anything else are rarely text.
    for printable in _PRINTABLE.finditer(data):
        decoded_text = printable[0].decode("ascii")
        for shape in _KNOWN:
            for _ in _matches(shape, decoded_text):
                yield shape.kind
        if layers > 1:
            for kind, _ in _encoded(decoded_text, layers - 1):
                yield kind
