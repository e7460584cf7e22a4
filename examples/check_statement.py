"""Check a statement of ``tokenlake prove`` without Tokenlake.

::

    python examples/check_statement.py STATEMENT PUBLIC_KEY_HEX STORE [TAKEDOWN.parquet]

The script needs numpy and pyarrow, and nothing of Tokenlake: whoever has read it knows
everything that the check does.

It verifies these claims:

- The statement is signed by the private key of the given public key.
- The manifests in the store have the stated hashes, and the data files have the hashes
  of their manifests.
- The rows and epochs of each dataset, and the tokens of packed rows, are those of the
  rows that were read.
- No document of the takedown list was read from step ``none_from`` on.

It trusts these members, because they are signed: ``deliveries``, which ``tokenlake
prove --check`` recomputes from ``state``; ``overlap``; the steps that read listed
documents; and tokens of rows that are not packed.

The script has five sections, and each uses only those before it:

1. Ed25519 signatures (RFC 8032).
2. Random numbers and permutations.
3. Orders: the rows of an epoch in the order in which they are read.
4. Counting: the number of times that each row was read.
5. The check of a statement.

Terms:

- A *stored row* is a row of a dataset, numbered from 0 in the order of its files.
- A *row group* is a range of stored rows of one file that are compressed together.
- A *lane* is an equal part of the rows of an epoch. Batches take rows of all lanes.
- A *place* is the number of a row in its lane, in the order in which the lane is read.

Stored rows, lanes and places are int64 arrays; n is the number of their elements.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Json = dict[str, Any]


def require(condition: bool, message: str) -> None:
    """End the program with a message unless a condition holds."""
    if not condition:
        raise SystemExit(f"refused: {message}")


# -- 1. Ed25519 signatures (RFC 8032, section 5.1)
#
# The curve is -x^2 + y^2 = 1 + d x^2 y^2 over the integers modulo p. Its points form a
# group. The base point generates a subgroup of the prime order L.

Point = tuple[int, int]
"""Point (x, y) of the curve, both coordinates from 0 to p - 1."""

PRIME: Final = 2**255 - 19  # p
BASE_ORDER: Final = 2**252 + 27742317777372353535851937790883648493  # L
COFACTOR: Final = 8  # number of points of the curve, divided by L
NEUTRAL: Final[Point] = (0, 1)


def inverse(value: int) -> int:
    """Return 1 / value modulo p."""
    return pow(value, -1, PRIME)


CURVE: Final = -121665 * inverse(121666) % PRIME  # d
ROOT_OF_MINUS_ONE: Final = pow(2, (PRIME - 1) // 4, PRIME)


def decode_point(encoding: bytes) -> Point:
    """Return the point that 32 bytes encode (RFC 8032, section 5.1.3).

    1. The last bit is the sign of x, which is the lowest bit of x. The other 255 bits
       are y.
    2. The equation of the curve gives x^2 = (y^2 - 1) / (d y^2 + 1).
    3. A candidate for the square root is (x^2)^((p + 3) / 8). If its square is wrong,
       it is multiplied by a square root of -1. If the square is still wrong, no point
       has this y.
    4. Of the two square roots x and p - x, the sign selects one.

    Raises:
        SystemExit: No point has this encoding, or it has another encoding.
    """
    require(len(encoding) == 32, "a key or half of a signature is not 32 bytes long")
    # 1. The sign of x, and y.
    sign = encoding[31] >> 7
    y = int.from_bytes(encoding, "little") % 2**255
    # 2. The square of x.
    numerator = y * y - 1
    denominator = CURVE * y * y + 1
    square = numerator * inverse(denominator) % PRIME
    # 3. A square root.
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * ROOT_OF_MINUS_ONE % PRIME
    has_root = x * x % PRIME == square
    # A point has one valid encoding: y is less than p, and there is no negative zero.
    is_unique = y < PRIME and (x != 0 or sign == 0)
    require(has_root and is_unique, "a key or a signature is no point of the curve")
    # 4. The root with the right sign.
    if x & 1 != sign:
        x = PRIME - x
    return x, y


def add_points(first: Point, second: Point) -> Point:
    """Return the sum of two points (RFC 8032, section 3, with a = -1).

    ::

        x3 = (x1 y2 + x2 y1) / (1 + d x1 x2 y1 y2)
        y3 = (y1 y2 + x1 x2) / (1 - d x1 x2 y1 y2)
    """
    x1, y1 = first
    x2, y2 = second
    product = CURVE * x1 * x2 * y1 * y2 % PRIME
    x3 = (x1 * y2 + x2 * y1) * inverse(1 + product)
    y3 = (y1 * y2 + x1 * x2) * inverse(1 - product)
    return x3 % PRIME, y3 % PRIME


def multiply_point(scalar: int, point: Point) -> Point:
    """Return the sum of `scalar` times the same point, by doubling and adding."""
    product = NEUTRAL
    doubled = point
    # One doubling for each bit of the scalar, and an addition for each bit that is 1.
    while scalar:
        if scalar & 1:
            product = add_points(product, doubled)
        doubled = add_points(doubled, doubled)
        scalar >>= 1
    return product


# The base point has y = 4/5 and an even x.
BASE_Y: Final = 4 * inverse(5) % PRIME
BASE_POINT: Final = decode_point(BASE_Y.to_bytes(32, "little"))


def is_signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether a signature is valid (RFC 8032, section 5.1.7).

    A signature consists of a point R and an integer S. It is valid if ``S * base = R +
    k * key``, where k is the SHA-512 of R, the key and the message.

    Args:
        public_key: Public key, 32 bytes.
        message: Signed bytes.
        signature: Signature, 64 bytes.

    Raises:
        SystemExit: The key or R is no point of the curve.
    """
    encoded_commitment = signature[:32]
    encoded_scalar = signature[32:]
    key = decode_point(public_key)
    commitment = decode_point(encoded_commitment)
    scalar = int.from_bytes(encoded_scalar, "little")
    if len(encoded_scalar) != 32 or scalar >= BASE_ORDER:
        return False
    # With a key of small order, the equation holds for signatures that nobody made: 8
    # times any such point is the neutral element.
    for point in (key, commitment):
        if multiply_point(COFACTOR, point) == NEUTRAL:
            return False
    digest = hashlib.sha512(encoded_commitment + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % BASE_ORDER
    left = multiply_point(scalar, BASE_POINT)
    right = add_points(commitment, multiply_point(challenge, key))
    return left == right


# -- 2. Random numbers and permutations
#
# Random numbers are those of SplitMix64 (Steele, Lea and Flood 2014). Arithmetic of
# uint64 arrays is modulo 2^64.

INCREMENT: Final = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER: Final = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER: Final = 0x94D049BB133111EB

ROUNDS: Final = 8
"""Number of rounds of a permutation."""

ROUNDS_IF_SMALL: Final = 16
SMALL: Final = 32
"""Size below which a permutation has more rounds."""


def mix(values: UInt64) -> UInt64:
    """Return the two multiplications of SplitMix64, uint64[n]."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(FIRST_MULTIPLIER)
    values = values ^ (values >> np.uint64(27))
    return values * np.uint64(SECOND_MULTIPLIER)


def splitmix64(values: UInt64) -> UInt64:
    """Return the output of SplitMix64 for each state, uint64[n]."""
    mixed = mix(values + np.uint64(INCREMENT))
    return mixed ^ (mixed >> np.uint64(31))


def extend_keys(keys: UInt64, words: Int64) -> UInt64:
    """Return the keys of random streams with one more word each, uint64[n].

    Args:
        keys: Keys, uint64[n] or uint64[1].
        words: Word of each key, int64[n].
    """
    return splitmix64(keys ^ words.astype(np.uint64))


def key_of(seed: int, *words: int) -> UInt64:
    """Return the key of the random stream of a seed and some words, uint64[1]."""
    key = splitmix64(np.array([seed], np.uint64))
    for word in words:
        key = extend_keys(key, np.array([word]))
    return key


def permute(index: Int64, size: Int64, key: UInt64) -> Int64:
    """Return the number at each index of a permutation of ``range(size)``, int64[n].

    The permutation is a Feistel network for any size (Black and Rogaway 2002, *Ciphers
    with arbitrary finite domains*):

    1. The index is written as two digits, ``left * right_base + right``. The bases are
       about the square root of the size; their product is at least the size.
    2. Each round adds a random number to one of the digits, modulo its base. The number
       is drawn from the other digit. Rounds 0, 2, 4, ... change the left digit.
    3. A result that is not less than the size goes through all rounds again, until it
       is (cycle walking).

    Args:
        index: Index in the permutation, int64[n].
        size: Size of the permutation of each index, int64[n].
        key: Key of the permutation of each index, uint64[n].
    """
    # The bases: the square root of the size, and the size divided by it, both rounded
    # up.
    root = np.sqrt(size - 1)
    left_base = np.floor(root).astype(np.int64) + 1
    right_base = -(-size // left_base)
    # Indices whose number is not less than the size yet.
    pending = np.arange(len(size))
    number = index.astype(np.uint64)
    while len(pending):
        number[pending] = apply_rounds(
            number[pending],
            size[pending],
            key[pending],
            left_base[pending].astype(np.uint64),
            right_base[pending].astype(np.uint64),
        )
        is_outside = number[pending] >= size[pending].astype(np.uint64)
        pending = pending[is_outside]
    return number.astype(np.int64)


def apply_rounds(
    number: UInt64,
    size: Int64,
    key: UInt64,
    left_base: UInt64,
    right_base: UInt64,
) -> UInt64:
    """Return numbers after all rounds of their permutations, uint64[n].

    Args:
        number: Numbers of two digits, uint64[n].
        size: Size of each permutation, int64[n].
        key: Key of each permutation, uint64[n].
        left_base: Base of the left digit, uint64[n].
        right_base: Base of the right digit, uint64[n].
    """
    left = number // right_base
    right = number % right_base
    # All numbers go through the loop together; large permutations skip its second half.
    round_count = np.where(size < SMALL, ROUNDS_IF_SMALL, ROUNDS)
    for round_number in range(ROUNDS_IF_SMALL):
        has_round = round_number < round_count
        round_key = key + np.uint64(round_number * INCREMENT % 2**64)
        if round_number % 2 == 0:
            addend = random_below(left_base, right + round_key)
            changed_left = (left + addend) % left_base
            left = np.where(has_round, changed_left, left)
        else:
            addend = random_below(right_base, left + round_key)
            changed_right = (right + addend) % right_base
            right = np.where(has_round, changed_right, right)
    return left * right_base + right


def random_below(limit: UInt64, states: UInt64) -> UInt64:
    """Return a random number from 0 to ``limit - 1`` for each state, uint64[n].

    The upper 32 bits of a random number are a fraction f / 2^32, and the result is
    ``floor(f * limit / 2^32)``. Limits are less than 2^32.
    """
    fraction = mix(states) >> np.uint64(32)
    return (fraction * limit) >> np.uint64(32)


# -- 3. Orders
#
# An order is the stored row at each place of an epoch, lane by lane, int64[rows]. All
# orders are permutations of the stored rows.

GROUP_WORD: Final = 1
WINDOW_WORD: Final = 2
TURN_WORD: Final = 4
ROW_WORD: Final = 5
"""First words of the keys that permute row groups, windows, turns and rows."""


def offsets_of(counts: Int64) -> Int64:
    """Return the sum of the counts before each count, and of all, int64[n + 1]."""
    return np.append(0, np.cumsum(counts))


def lane_bounds(rows: int, lanes: int) -> Int64:
    """Return the begin of each lane, and the end of the last, int64[lanes + 1].

    Lane l has the rows from ``floor(l * rows / lanes)`` on.
    """
    return np.arange(lanes + 1) * rows // lanes


def lanes_and_places(rows: int, lanes: int) -> tuple[Int64, Int64]:
    """Return the lane and the place of each row of an epoch, int64[rows] both.

    The rows are sorted by lane, and by place within each lane.
    """
    bounds = lane_bounds(rows, lanes)
    lane_rows = np.diff(bounds)
    lane = np.repeat(np.arange(lanes), lane_rows)
    place = np.arange(rows) - bounds[lane]
    return lane, place


def epoch_order(
    group_rows: Int64,
    lanes: int,
    seed: int | None,
    form: Mapping[str, Any],
    epoch: int,
) -> Int64:
    """Return the stored row at each place of an epoch, int64[rows].

    Args:
        group_rows: Number of rows of each row group, int64[G].
        lanes: Number of lanes.
        seed: Seed of the order; None: rows are read as stored.
        form: Members ``window`` and ``interleave`` of the state of a loader.
        epoch: Epoch from 0.
    """
    if seed is None:
        return np.arange(group_rows.sum())
    if "interleave" in form:
        return strand_order(group_rows, lanes, seed, form["interleave"], epoch)
    if form["window"] == "all":
        return uniform_order(group_rows, seed, epoch)
    return window_order(group_rows, lanes, seed, form["window"], epoch)


def uniform_order(group_rows: Int64, seed: int, epoch: int) -> Int64:
    """Return the order in which all rows of an epoch are permuted, int64[rows]."""
    rows = int(group_rows.sum())
    key = np.repeat(key_of(seed, ROW_WORD, epoch), rows)
    return permute(np.arange(rows), np.full(rows, rows), key)


def window_order(
    group_rows: Int64, lanes: int, seed: int, window: int, epoch: int
) -> Int64:
    """Return the order in which rows are permuted within windows, int64[rows].

    1. Row groups are permuted and laid end to end. Their rows are the *virtual rows* of
       the epoch.
    2. Lanes share the virtual rows.
    3. A lane is cut into windows of one or more neighbouring row groups, and the rows
       of each window are permuted.
    4. Each virtual row is a stored row.

    Args:
        group_rows: Number of rows of each row group, int64[G].
        lanes: Number of lanes.
        seed: Seed of the order.
        window: Number of row groups of a window.
        epoch: Epoch from 0.
    """
    rows = int(group_rows.sum())
    group_count = len(group_rows)
    # 1. The row group at each place, and its first virtual row.
    group_key = np.repeat(key_of(seed, GROUP_WORD, epoch), group_count)
    group_size = np.full(group_count, group_count)
    group_at = permute(np.arange(group_count), group_size, group_key)
    group_begin = offsets_of(group_rows[group_at])
    # 2. The lane of each place.
    bounds = lane_bounds(rows, lanes)
    place = np.arange(rows)
    lane = np.searchsorted(bounds, place, "right") - 1
    # 3. The window of each place, which ends where its lane ends, and the virtual row.
    window_number = (np.searchsorted(group_begin, place, "right") - 1) // window
    first_group = window_number * window
    end_group = np.minimum(first_group + window, group_count)
    window_begin = np.maximum(group_begin[first_group], bounds[lane])
    window_end = np.minimum(group_begin[end_group], bounds[lane + 1])
    lane_key = extend_keys(key_of(seed, WINDOW_WORD, epoch), lane)
    virtual_row = window_begin + permute(
        place - window_begin,
        window_end - window_begin,
        extend_keys(lane_key, window_number),
    )
    # 4. The stored row.
    group_place = np.searchsorted(group_begin, virtual_row, "right") - 1
    row_in_group = virtual_row - group_begin[group_place]
    first_row = offsets_of(group_rows)[:-1]
    return first_row[group_at[group_place]] + row_in_group


def strand_order(
    group_rows: Int64, lanes: int, seed: int, strands: int, epoch: int
) -> Int64:
    """Return the order in which lanes read many row groups side by side, int64[rows].

    1. Each lane is cut into `strands` parts, its *strands*. They are the lanes of a
       window order of ``lanes * strands`` lanes and windows of one row group.
    2. A lane reads in turns. A turn takes the next row of each strand, and the strands
       of a turn are permuted. Strands differ by at most one row: the last turn takes a
       row of the longer strands only.
    3. Even strands are read forwards and odd strands backwards.

    Args:
        group_rows: Number of rows of each row group, int64[G].
        lanes: Number of lanes.
        seed: Seed of the order.
        strands: Number of strands of each lane.
        epoch: Epoch from 0.
    """
    rows = int(group_rows.sum())
    # 1. The stored rows of all strands, one strand after the other.
    strand_rows = window_order(group_rows, lanes * strands, seed, 1, epoch)
    strand_bounds = lane_bounds(rows, lanes * strands)
    strand_length = np.diff(strand_bounds)
    # 2. The lane, the turn and the index in the turn of each place.
    lane, place = lanes_and_places(rows, lanes)
    full_turns = rows // (lanes * strands)
    turn = np.minimum(place // strands, full_turns)
    index_in_turn = place - turn * strands
    # The last turn of a lane has one row for each of its longer strands.
    longer_strands = np.flatnonzero(strand_length > full_turns)
    first_longer = np.searchsorted(longer_strands, lane * strands)
    end_longer = np.searchsorted(longer_strands, (lane + 1) * strands)
    is_last = turn == full_turns
    turn_size = np.where(is_last, end_longer - first_longer, strands)
    # The strand of each place.
    lane_key = extend_keys(key_of(seed, TURN_WORD, epoch), lane)
    number = permute(index_in_turn, turn_size, extend_keys(lane_key, turn))
    strand = lane * strands + number
    strand[is_last] = longer_strands[(first_longer + number)[is_last]]
    # 3. A strand gives one row in each turn, so the turn is the row's index in it.
    from_end = strand_length[strand] - 1 - turn
    row_in_strand = np.where(strand % 2 == 0, turn, from_end)
    return strand_rows[strand_bounds[strand] + row_in_strand]


# -- 4. Counting


def count_reads(
    deliveries: Sequence[Json],
    dataset_name: str,
    group_rows: Int64,
    form: Mapping[str, Any],
) -> Int64:
    """Return the number of times that each stored row was read, int64[rows].

    A lane reads epoch after epoch. A delivery states, for each lane, the number of rows
    that it had read before the steps (``begin``) and after them (``end``), both counted
    from the begin of one epoch (``epoch``). The row at place p of a lane of r rows is
    read for the e-th time, counted from 0, as number ``e * r + p``.

    Example: a lane of 5 rows with ``begin`` 3 and ``end`` 12. The rows at places 3 and
    4 were read once in the first epoch, all rows in the second, and those at places 0
    and 1 in the third.

    Args:
        deliveries: Deliveries of a statement.
        dataset_name: Name of the dataset in the statement.
        group_rows: Number of rows of each row group of the dataset, int64[G].
        form: Form of the order of the dataset; see :func:`epoch_order`.
    """
    rows = int(group_rows.sum())
    reads = np.zeros(rows, np.int64)
    for delivery in deliveries:
        if delivery["source"] != dataset_name:
            continue
        # The lane and place of each row of an epoch, and the numbers of its lane, all
        # int64[rows].
        lanes = len(delivery["end"])
        lane, place = lanes_and_places(rows, lanes)
        lane_rows = np.bincount(lane)[lane]
        begin = np.array(delivery["begin"])[lane]
        end = np.array(delivery["end"])[lane]
        # Epochs of which any lane has read a row: from the first epoch that a lane has
        # begun to the last one, which is rounded up.
        first_epochs = begin // lane_rows
        end_epochs = -(-end // lane_rows)
        for epoch in range(first_epochs.min(), end_epochs.max()):
            number = epoch * lane_rows + place
            is_read = (begin <= number) & (number < end)
            stored_row = epoch_order(
                group_rows, lanes, delivery["seed"], form, delivery["epoch"] + epoch
            )
            # An epoch has each stored row once.
            reads[stored_row[is_read]] += 1
    return reads


# -- 5. The check of a statement


class Split(NamedTuple):
    """Split of a version, whose files have the hashes of its manifest.

    Attributes:
        folder: Folder of the version in the store.
        files: Entries of its data files in the manifest, in the order of stored rows.
        inputs: Entries of the input files of the version in the manifest.
    """

    folder: Path
    files: list[Json]
    inputs: list[Json]

    def group_rows(self) -> Int64:
        """Return the number of rows of each row group, int64[G]."""
        group_rows: list[Int64] = []
        for file in self.files:
            # The first row of each row group, and the number of rows of the file.
            group_bounds = [*file["row_groups"], file["rows"]]
            group_rows.append(np.diff(group_bounds))
        return np.concatenate(group_rows)

    def read(self, columns: list[str]) -> list[Json]:
        """Return some columns of all stored rows."""
        rows: list[Json] = []
        for file in self.files:
            table = pq.read_table(self.folder / file["path"], columns=columns)
            rows += table.to_pylist()
        return rows


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def sha256(data: bytes) -> str:
    """Return the SHA-256 of data as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_statement(data: bytes, public_key: str) -> Json:
    """Verify the signature of a statement, and return its other members.

    The signature is that of the canonical JSON without the member ``signature``.

    Args:
        data: Contents of the file of the statement.
        public_key: Public key of the expected signer, 64 hexadecimal digits.
    """
    statement = json.loads(data)
    # A statement has one valid form, byte for byte.
    require(canonical_json(statement) + b"\n" == data, "this is not canonical JSON")
    require(statement["public_key"] == public_key, "the statement names another key")
    signature = statement.pop("signature")
    require(signature == signature.lower(), "the signature has uppercase digits")
    is_valid = is_signed(
        bytes.fromhex(public_key), canonical_json(statement), bytes.fromhex(signature)
    )
    require(is_valid, "the signature is not that of this key and statement")
    return statement


def read_takedown(statement: Json, takedown: Path | None) -> list[Json]:
    """Return the documents of the takedown list, each with ``file`` and ``position``.

    Args:
        statement: Statement, which names the hash of the list.
        takedown: Parquet file of the list; None: the statement must have none.
    """
    stated_hash = None
    if statement["takedown"] is not None:
        stated_hash = statement["takedown"]["sha256"]
    if takedown is None:
        require(stated_hash is None, "the statement is about a takedown list")
        return []
    actual_hash = sha256(takedown.read_bytes())
    require(actual_hash == stated_hash, "the statement is about another takedown list")
    return pq.read_table(takedown, columns=["file", "position"]).to_pylist()


def open_split(dataset: Json, store: Path) -> Split:
    """Verify the hashes of the manifest and the files of a split, and return it.

    Args:
        dataset: Entry of the dataset in the statement. Its name is
            ``NAME@VERSION/SPLIT``.
        store: Folder of the store.
    """
    version, _, split_name = dataset["name"].partition("/")
    name, number = version.rsplit("@", 1)
    folder = store / name / number
    # A manifest contains the hash of its other members.
    manifest = json.loads((folder / "manifest.json").read_bytes())
    written_hash = manifest.pop("sha256")
    actual_hash = sha256(canonical_json(manifest))
    require(
        written_hash == dataset["manifest"] == actual_hash,
        f"the manifest of {version} is not that of the statement",
    )
    files: list[Json] = []
    for file in manifest["files"]:
        if file["split"] == split_name:
            data = (folder / file["path"]).read_bytes()
            require(sha256(data) == file["sha256"], f"{file['path']} is damaged")
            files.append(file)
    return Split(folder, files, manifest["inputs"])


def check_rows(claim: Json, reads: Int64) -> None:
    """Check the claims about rows and epochs of a dataset.

    Args:
        claim: Entry of the dataset in the member ``sources``.
        reads: Number of times that each stored row was read, int64[rows].
    """
    rows_read = int(reads.sum())
    stored_rows = len(reads)
    require(rows_read == claim["rows"], f"{rows_read} rows were read")
    expected = {
        "whole": rows_read // stored_rows,
        "rest": rows_read % stored_rows,
        "of": stored_rows,
    }
    for member, value in expected.items():
        stated = claim["repetitions"][member]
        require(stated == value, f"repetitions: {member} is {value}, not {stated}")


def check_tokens(claim: Json, reads: Int64, rows: Sequence[Json]) -> None:
    """Check the claim about the tokens of packed rows.

    Args:
        claim: Entry of the dataset in the member ``sources``.
        reads: Number of times that each stored row was read, int64[rows].
        rows: Stored rows with ``segment_lengths``.
    """
    tokens = 0
    for row, times in zip(rows, reads.tolist(), strict=True):
        tokens += times * sum(row["segment_lengths"])
    require(tokens == claim["tokens"], f"{tokens} tokens were read")


def listed_name(value: int | str) -> int | str:
    """Return the identity or the path of a file in a takedown list.

    Identities are signed 64-bit integers. A list may have them as unsigned integers, or
    as text.
    """
    if isinstance(value, str) and not value.lstrip("-").isdecimal():
        return value.removeprefix("file://").removeprefix("./")
    identity = int(value)
    if identity >= 2**63:
        return identity - 2**64
    return identity


def names_of_input(entry: Json) -> set[int | str]:
    """Return the names by which a takedown list may refer to an input file.

    These are its identity, its path, and each end of the path that begins after a
    ``/``.

    Args:
        entry: Entry of the input file in the manifest.
    """
    names: set[int | str] = {entry["file_id"]}
    path_parts = entry["path"].split("/")
    for index in range(len(path_parts)):
        names.add("/".join(path_parts[index:]))
    return names


def check_takedown(
    documents: Sequence[Json], inputs: Sequence[Json], pieces: Sequence[Json]
) -> None:
    """Check that no listed document was read.

    Args:
        documents: Listed documents, each with ``file`` and ``position``.
        inputs: Entries of the input files in the manifest.
        pieces: Pieces of documents that were read. Their ``file`` is an identity.
    """
    # A name may be that of several input files; all of them are meant.
    files_by_name: dict[int | str, list[int]] = {}
    for entry in inputs:
        for name in names_of_input(entry):
            files_by_name.setdefault(name, []).append(entry["file_id"])
    listed: set[tuple[int, int]] = set()
    for document in documents:
        for file_id in files_by_name.get(listed_name(document["file"]), []):
            listed.add((file_id, document["position"]))
    for piece in pieces:
        is_listed = (piece["file"], piece["position"]) in listed
        require(not is_listed, "a document of the takedown list was read")


def check_dataset(
    statement: Json, name: str, store: Path, documents: Sequence[Json]
) -> None:
    """Check all claims about one dataset.

    Args:
        statement: Statement.
        name: Name of the dataset in the statement.
        store: Folder of the store.
        documents: Documents of the takedown list.
    """
    dataset = statement["datasets"][name]
    split = open_split(dataset, store)
    group_rows = split.group_rows()
    # Each source of a mixture has an order of its own.
    form = statement["state"] | statement["state"]["sources"][name]

    # 1. Rows and epochs.
    claim = statement["sources"][name]
    reads = count_reads(statement["deliveries"], name, group_rows, form)
    check_rows(claim, reads)

    # 2. Tokens. A packed row has pieces of several documents, each of which is a
    #    segment. Another row is one document.
    is_packed = dataset["kind"] == "packed"
    if is_packed:
        rows = split.read(["segment_lengths", "documents"])
        check_tokens(claim, reads, rows)
    else:
        rows = split.read(["file", "position"])

    # 3. Rows that were read since `none_from` have no listed document.
    if statement["takedown"] is not None:
        late_deliveries = statement["takedown"]["deliveries"]
        late_reads = count_reads(late_deliveries, name, group_rows, form)
        pieces: list[Json] = []
        for row_index in np.flatnonzero(late_reads):
            if is_packed:
                pieces += rows[row_index]["documents"]
            else:
                pieces.append(rows[row_index])
        check_takedown(documents, split.inputs, pieces)


def check(
    data: bytes, public_key: str, store: Path, takedown: Path | None = None
) -> Json:
    """Check a statement, and return its members without the signature.

    Args:
        data: Contents of the file of the statement.
        public_key: Public key of the expected signer, 64 hexadecimal digits.
        store: Folder of the store.
        takedown: Takedown list, if the statement is about one.

    Raises:
        SystemExit: A claim does not hold; the message names it.
    """
    statement = read_statement(data, public_key)
    documents = read_takedown(statement, takedown)
    for name in statement["datasets"]:
        check_dataset(statement, name, store, documents)
    return statement


def main() -> None:
    """Check the statement that the command line names."""
    parser = argparse.ArgumentParser(
        description="Check a statement of `tokenlake prove`."
    )
    parser.add_argument("statement", type=Path, help="statement to check")
    parser.add_argument(
        "public_key", help="public key of the signer, 64 hexadecimal digits"
    )
    parser.add_argument("store", type=Path, help="folder of the datasets")
    parser.add_argument(
        "takedown", type=Path, nargs="?", help="Parquet file of the takedown list"
    )
    options = parser.parse_args()
    statement = check(
        options.statement.read_bytes(),
        options.public_key,
        options.store,
        options.takedown,
    )
    none_from = None
    if statement["takedown"] is not None:
        none_from = statement["takedown"]["none_from"]
    print(f"holds: steps {statement['steps']}, takedown: {none_from}")


if __name__ == "__main__":
    main()
