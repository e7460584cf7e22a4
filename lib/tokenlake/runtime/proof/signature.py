"""Ed25519 signatures of statements: keys, and a check that refuses keys of small order."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final

from tokenlake.errors import ConfigError, MissingExtraError

Point = tuple[int, int, int, int]
"""x = X/Z, y = Y/Z, and T = XY/Z (RFC 8032, section 5.1.4)."""

_FIELD: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_CURVE: Final = -121665 * pow(121666, -1, _FIELD) % _FIELD
_ROOT: Final = pow(2, (_FIELD - 1) // 4, _FIELD)  # of -1
_PUBLIC: Final = bytes.fromhex("302a300506032b6570032100")  # what comes before the key (RFC 8410)
_PEM: Final = re.compile(r"-----BEGIN PUBLIC KEY-----(.*?)-----END PUBLIC KEY-----", re.DOTALL)
_HOW: Final = "openssl genpkey -algorithm ed25519 -out key.pem makes one"


def verified(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether a signature (64 bytes) is that of a public key (32 bytes) for a message; RFC 8032, section 5.1.7.

    The equation of the standard holds for a key of small order with a signature that nobody made, for any message. So a
    key or a first half of a signature that is no multiple of the base point is refused, as is any point or number in
    another encoding than the shortest.
    """
    if len(signature) != 64 or len(public_key) != 32:
        return False
    key, noise = _point(public_key), _point(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or noise is None or scalar >= _ORDER:
        return False
    if not _is_multiple_of_base(key) or not _is_multiple_of_base(noise):
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little")
    a, b = _times(scalar, _BASE), _sum(noise, _times(challenge % _ORDER, key))
    return (a[0] * b[2] - b[0] * a[2]) % _FIELD == 0 and (a[1] * b[2] - b[1] * a[2]) % _FIELD == 0


def private_key(reference: str | os.PathLike[str] | dict[str, str]) -> tuple[Any, bytes]:
    """Read a private key.

    Args:
        reference: a PEM file, or ``{"env": NAME}`` for an environment variable that holds its text.

    Returns:
        the key, which signs, and its public key, 32 bytes.

    Raises:
        ConfigError: there is no such key, or it is not one of Ed25519.
        MissingExtraError: the package cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingExtraError("signing needs cryptography: pip install 'tokenlake[prove]'") from error
    where, text = _text_of(reference)
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        # What the package says may repeat what was read.
        raise ConfigError(f"{where} holds no private key in PEM without a password; {_HOW}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{where} holds a key of another kind than Ed25519; {_HOW}")
    return key, key.public_key().public_bytes_raw()


def public_key(given: str) -> bytes:
    """Read a public key, 32 bytes.

    Args:
        given: 64 hexadecimal digits, or a PEM file.

    Raises:
        ConfigError: It is neither, or no private key can belong to it.
    """
    if re.fullmatch("[0-9a-fA-F]{64}", given):
        return _require_usable(bytes.fromhex(given), given)
    try:
        found = _PEM.search(Path(given).read_text())
        data = base64.b64decode(found[1]) if found else b""
    except (OSError, UnicodeDecodeError, binascii.Error) as error:
        raise ConfigError(
            f"public key {given!r}: {error}; expected 64 hexadecimal digits, or a PEM file"
        ) from error
    if not data.startswith(_PUBLIC) or len(data) != len(_PUBLIC) + 32:
        raise ConfigError(
            f"{given} holds no public key of Ed25519 in PEM; "
            "openssl pkey -in key.pem -pubout -out key.pub.pem writes that of a private key"
        )
    return _require_usable(data[len(_PUBLIC) :], given)


def _require_usable(key: bytes, given: str) -> bytes:
    """Return a public key; ConfigError where no private key can belong to it."""
    point = _point(key)
    if point is None or not _is_multiple_of_base(point):
        raise ConfigError(
            f"public key {given!r}: no private key belongs to it (it is no point of the curve, or one of small order, "
            "for which anybody can make signatures); expected the public key of whoever is to have signed"
        )
    return key


def _text_of(reference: str | os.PathLike[str] | dict[str, str]) -> tuple[str, bytes]:
    if isinstance(reference, dict):
        name = reference.get("env", "")
        if list(reference) != ["env"] or name not in os.environ:
            told = f"key: the environment variable {name!r} is not set; expected the text of a PEM file"
            raise ConfigError(told)
        return f"the environment variable {name}", os.environ[name].encode()
    try:
        return os.fspath(reference), Path(reference).read_bytes()
    except OSError as error:
        raise ConfigError(f"key {os.fspath(reference)!r} cannot be read: {error.strerror}; {_HOW}") from error


def _sum(a: Point, b: Point) -> Point:
    """Section 5.1.4."""
    minus, plus = (a[1] - a[0]) * (b[1] - b[0]), (a[1] + a[0]) * (b[1] + b[0])
    across, depth = 2 * a[3] * b[3] * _CURVE, 2 * a[2] * b[2]
    e, f, g, h = plus - minus, depth - across, depth + across, plus + minus
    return e * f % _FIELD, g * h % _FIELD, f * g % _FIELD, e * h % _FIELD


def _times(scalar: int, point: Point) -> Point:
    found: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            found = _sum(found, point)
        point, scalar = _sum(point, point), scalar >> 1
    return found


def _is_multiple_of_base(point: Point) -> bool:
    """Return whether a point is in the group of the base point, and not its neutral element."""
    return not _is_neutral(point) and _is_neutral(_times(_ORDER, point))


def _is_neutral(point: Point) -> bool:
    return point[0] == 0 and (point[1] - point[2]) % _FIELD == 0


def _point(data: bytes) -> Point | None:
    """Section 5.1.3; None where it is no point."""
    sign, y = data[31] >> 7, int.from_bytes(data, "little") & ((1 << 255) - 1)
    square = (y * y - 1) * pow(_CURVE * y * y + 1, -1, _FIELD) % _FIELD
    x = pow(square, (_FIELD + 3) // 8, _FIELD)
    if x * x % _FIELD != square:
        x = x * _ROOT % _FIELD
    if y >= _FIELD or x * x % _FIELD != square or (x == 0 and sign):
        return None
    x = x if x & 1 == sign else _FIELD - x
    return x, y, 1, x * y % _FIELD


_base = _point((4 * pow(5, -1, _FIELD) % _FIELD).to_bytes(32, "little"))
assert _base is not None
_BASE: Final[Point] = _base
