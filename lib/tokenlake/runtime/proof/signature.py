"""Ed25519 signatures of statements.

Keys are read, and a check refuses keys of small order.

The check is plain Python over the formulas of RFC 8032. It works on public data alone,
so that it needs no constant time; it takes some milliseconds. Signing needs the package
cryptography.
"""

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
"""Point (X, Y, Z, T) of the curve: x = X/Z, y = Y/Z, T = XY/Z.

These are the extended coordinates of RFC 8032, section 5.1.4.
"""

_FIELD: Final = 2**255 - 19  # prime of the field of coordinates
# Order of the base point: this many times the base point is the neutral element.
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
# D of the curve -x^2 + y^2 = 1 + d x^2 y^2.
_CURVE: Final = -121665 * pow(121666, -1, _FIELD) % _FIELD
_ROOT: Final = pow(2, (_FIELD - 1) // 4, _FIELD)  # a square root of -1
_NEUTRAL: Final[Point] = (0, 1, 1, 0)  # x = 0, y = 1

# Bytes before the key in a PEM file (RFC 8410).
_PUBLIC: Final = bytes.fromhex("302a300506032b6570032100")
_PEM: Final = re.compile(
    r"-----BEGIN PUBLIC KEY-----(.*?)-----END PUBLIC KEY-----", re.DOTALL
)
_HOW: Final = "openssl genpkey -algorithm ed25519 -out key.pem makes one"


def verified(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether a signature is valid for a key and a message.

    The check is that of RFC 8032, section 5.1.7.

    With a key of small order the equation of the standard holds for signatures that
    nobody made. So a key, or a first half of a signature, that is no multiple of the
    base point is refused. So is any point or number whose encoding is not the shortest
    one.

    Args:
        public_key: Public key, 32 bytes.
        message: Signed bytes.
        signature: Signature, 64 bytes.
    """
    if len(signature) != 64 or len(public_key) != 32:
        return False
    # A signature is a point (the commitment) and a number.
    key = _decode_point(public_key)
    commitment = _decode_point(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= _ORDER:
        return False
    if not _is_multiple_of_base(key) or not _is_multiple_of_base(commitment):
        return False
    # The signature is valid if scalar * base = commitment + challenge * key.
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % _ORDER
    left = _multiply(scalar, _BASE)
    right = _add(commitment, _multiply(challenge, key))
    return _is_equal(left, right)


def private_key(
    reference: str | os.PathLike[str] | dict[str, str],
) -> tuple[Any, bytes]:
    """Read a private key.

    Args:
        reference: PEM file, or ``{"env": NAME}`` for an environment variable that holds
            its text.

    Returns:
        The key, which signs, and its public key, 32 bytes.

    Raises:
        ConfigError: The key cannot be read, or is not one of Ed25519.
        MissingExtraError: The package cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingExtraError(
            "signing needs cryptography: pip install 'tokenlake[prove]'"
        ) from error
    # Without a password, because a program may sign.
    key_place, pem_text = _read_private(reference)
    try:
        key = serialization.load_pem_private_key(pem_text, password=None)
    except (ValueError, TypeError) as error:
        # The package's own message is not repeated: it may quote the key.
        raise ConfigError(
            f"{key_place} holds no private key in PEM without a password; {_HOW}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{key_place} holds a key of another kind than Ed25519; {_HOW}"
        )
    return key, key.public_key().public_bytes_raw()


def _read_private(
    reference: str | os.PathLike[str] | dict[str, str],
) -> tuple[str, bytes]:
    """Return a description of the place of a private key, and the text that it holds.

    The description is for messages.
    """
    # The text itself appears in no message.
    if isinstance(reference, dict):
        variable_name = reference.get("env", "")
        if list(reference) != ["env"] or variable_name not in os.environ:
            raise ConfigError(
                f"key: the environment variable {variable_name!r} is not set; expected the text of a PEM file"
            )
        return f"the environment variable {variable_name}", os.environ[
            variable_name
        ].encode()
    pem_path = os.fspath(reference)
    try:
        return pem_path, Path(pem_path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"key {pem_path!r} cannot be read: {error.strerror}; {_HOW}"
        ) from error


def public_key(given: str) -> bytes:
    """Read a public key.

    Args:
        given: 64 hexadecimal digits, or a PEM file.

    Returns:
        The key, 32 bytes.

    Raises:
        ConfigError: The argument is neither, or no private key can belong to it.
    """
    if re.fullmatch("[0-9a-fA-F]{64}", given):
        return _require_usable(bytes.fromhex(given), given)
    # A PEM file wraps the key in a structure whose beginning is always the same.
    key_structure = b""
    try:
        match = _PEM.search(Path(given).read_text())
        if match is not None:
            key_structure = base64.b64decode(match[1])
    except (OSError, UnicodeDecodeError, binascii.Error) as error:
        raise ConfigError(
            f"public key {given!r}: {error}; expected 64 hexadecimal digits, or a PEM file"
        ) from error
    if not key_structure.startswith(_PUBLIC) or len(key_structure) != len(_PUBLIC) + 32:
        raise ConfigError(
            f"{given} holds no public key of Ed25519 in PEM; "
            "openssl pkey -in key.pem -pubout -out key.pub.pem writes that of a private key"
        )
    return _require_usable(key_structure[len(_PUBLIC) :], given)


def _require_usable(key: bytes, key_text: str) -> bytes:
    """Return a public key; ConfigError if no private key can belong to it."""
    point = _decode_point(key)
    if point is None or not _is_multiple_of_base(point):
        raise ConfigError(
            f"public key {key_text!r}: it has no private key (it is not a point of the curve, or one of small order, "
            "for which anybody can create signatures); expected the public key of the signer"
        )
    return key


# Arithmetic on the curve.


def _add(a: Point, b: Point) -> Point:
    """Return a + b, by the formula of RFC 8032, section 5.1.4.

    The local names are those of the standard.
    """
    product_minus = (a[1] - a[0]) * (b[1] - b[0])
    product_plus = (a[1] + a[0]) * (b[1] + b[0])
    product_t = 2 * a[3] * b[3] * _CURVE
    product_z = 2 * a[2] * b[2]
    e = product_plus - product_minus
    f = product_z - product_t
    g = product_z + product_t
    h = product_plus + product_minus
    return e * f % _FIELD, g * h % _FIELD, f * g % _FIELD, e * h % _FIELD


def _multiply(scalar: int, point: Point) -> Point:
    """Return scalar * point, by doubling and adding."""
    # One doubling for each bit of the number, and an addition for each bit that is 1.
    sum_point = _NEUTRAL
    doubled_point = point
    while scalar:
        if scalar & 1:
            sum_point = _add(sum_point, doubled_point)
        doubled_point = _add(doubled_point, doubled_point)
        scalar >>= 1
    return sum_point


def _is_equal(a: Point, b: Point) -> bool:
    """Return whether two points are the same, by their fractions X/Z and Y/Z."""
    has_same_x = (a[0] * b[2] - b[0] * a[2]) % _FIELD == 0
    has_same_y = (a[1] * b[2] - b[1] * a[2]) % _FIELD == 0
    return has_same_x and has_same_y


def _is_multiple_of_base(point: Point) -> bool:
    """Return whether a point is in the group of the base point, and is not neutral."""
    # The order times any point of this group is the neutral element. Points outside it
    # have a part of small order.
    if _is_equal(point, _NEUTRAL):
        return False
    return _is_equal(_multiply(_ORDER, point), _NEUTRAL)


def _decode_point(data: bytes) -> Point | None:
    """Return the point that 32 bytes encode (RFC 8032, section 5.1.3).

    The result is None if they encode none.

    1. The last bit is the sign of x, the other bits are y.
    2. x^2 = (y^2 - 1) / (d y^2 + 1).
    3. The candidate is x = (x^2)^((p + 3) / 8). If its square is wrong, multiply it by
       a root of -1; if the square is still wrong, there is no such point.
    4. Choose the root with the right sign.
    """
    # 1. The sign of x, and y.
    sign = data[31] >> 7
    y = int.from_bytes(data, "little") & ((1 << 255) - 1)
    # 2. and 3. x from the equation of the curve.
    square = (y * y - 1) * pow(_CURVE * y * y + 1, -1, _FIELD) % _FIELD
    x = pow(square, (_FIELD + 3) // 8, _FIELD)
    if x * x % _FIELD != square:
        x = x * _ROOT % _FIELD
    # The encoding must be the only one of this point: y below the prime, no negative 0.
    if y >= _FIELD or x * x % _FIELD != square or (x == 0 and sign):
        return None
    # 4. The root with the right sign.
    if x & 1 != sign:
        x = _FIELD - x
    return x, y, 1, x * y % _FIELD


# The base point has y = 4/5 and an even x.
_base = _decode_point((4 * pow(5, -1, _FIELD) % _FIELD).to_bytes(32, "little"))
assert _base is not None
_BASE: Final[Point] = _base
