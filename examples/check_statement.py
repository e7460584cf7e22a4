"""Check a statement of `tokenlake prove` without Tokenlake, in 125 lines of numpy,
pyarrow and RFC 8032.

::

    python examples/check_statement.py STATEMENT PUBLIC_KEY_HEX STORE [TAKEDOWN.parquet]

Computed again: the signature; the hashes of manifests and files; and from `deliveries`,
what each lane gave of each dataset, the order of every epoch, hence how often each row
was read: rows, epochs, tokens of packed rows, and that no document of the takedown list
was read since `none_from`. Trusted, as signed: `deliveries` (`tokenlake prove --check`
computes them from `state`), `overlap`, when documents were read before, and tokens of
rows that are not packed.
"""

# fmt: off
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

P, L, U = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493, np.uint64
D, STEP, FIRST, SECOND = -121665 * pow(121666, -1, P) % P, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def need(holds, message):
    if not holds:
        raise SystemExit(f"refused: {message}")


def point(data):  # RFC 8032, section 5.1.3
    sign, y = data[31] >> 7, int.from_bytes(data, "little") % 2**255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    need(y < P and x * x % P == square and (x or not sign), "a key or a signature is no point of the curve")
    return (x if x & 1 == sign else P - x), y


def plus(a, b):
    d, x, y = D * a[0] * b[0] * a[1] * b[1] % P, a[0] * b[1] + a[1] * b[0], a[1] * b[1] + a[0] * b[0]
    return x * pow(1 + d, -1, P) % P, y * pow(1 - d, -1, P) % P


def times(n, p):
    return (0, 1) if n == 0 else plus(times(n // 2, plus(p, p)), p if n & 1 else (0, 1))


# Section 5.1.7; with a point of small order anybody could sign.
def signed(key, message, proof):
    k, s = (int.from_bytes(b, "little") for b in (hashlib.sha512(proof[:32] + key + message).digest(), proof[32:]))
    base, r, a = map(point, ((4 * pow(5, -1, P) % P).to_bytes(32, "little"), proof[:32], key))
    return s < L and (0, 1) not in (times(8, r), times(8, a)) and times(s, base) == plus(r, times(k % L, a))


def mixed(z):  # the middle of SplitMix64
    z = (z ^ (z >> U(30))) * U(FIRST)
    return (z ^ (z >> U(27))) * U(SECOND)


def word(keys, words):  # keys with one word more, by the whole of it
    z = mixed((np.asarray(keys, U) ^ np.asarray(words).astype(U)) + U(STEP))
    return z ^ (z >> U(31))


# A Feistel network of two digits, whose bases multiply to the size or a little more.
def permuted(value, size, key):
    left = np.floor(np.sqrt(size - 1)).astype(np.int64) + 1
    base, value, todo = (left.astype(U), (-(-size // left)).astype(U)), value.astype(U), np.arange(len(size))
    while len(todo):
        digit, few = list(np.divmod(value[todo], base[1][todo])), size[todo] < 32
        for n in range(16):
            drawn = (mixed(digit[1 - n % 2] + key[todo] + U(n * STEP % 2**64)) >> U(32)) * base[n % 2][todo] >> U(32)
            digit[n % 2] = np.where(few | (n < 8), (digit[n % 2] + drawn) % base[n % 2][todo], digit[n % 2])
        value[todo] = digit[0] * base[1][todo] + digit[1]
        todo = todo[value[todo] >= size[todo].astype(U)]
    return value.astype(np.int64)


def cut(rows, parts):  # the begin of each of some equal parts, and the end of the last
    return np.array([part * rows // parts for part in range(parts + 1)])


# Lanes of some strands each, which take turns.
def strands(groups, lanes, seed, count, epoch):
    rows = groups.sum()
    bounds, begins = cut(rows, lanes), cut(rows, lanes * count)
    laid, length, whole = order(groups, begins, seed, {"window": 1}, epoch), np.diff(begins), rows // (lanes * count)
    lane = np.repeat(np.arange(lanes), np.diff(bounds))
    place = np.arange(rows) - bounds[lane]
    # The last turn has a row of the longer strands only.
    turn = np.minimum(place // count, whole)
    longer = np.flatnonzero(length > whole)
    first = np.searchsorted(longer, lane * count)
    size = np.where(turn < whole, count, np.searchsorted(longer, lane * count + count) - first)
    by_turn = word(word(word(word(word(0, np.array([seed], U)), [4]), [epoch]), lane), turn)
    number = permuted(place - turn * count, size, by_turn)
    strand = lane * count + number
    last = turn == whole
    strand[last] = longer[(first + number)[last]]
    return laid[begins[strand] + np.where(strand % 2 == 0, turn, length[strand] - 1 - turn)]


# The stored row at each place of all lanes, one lane after the other.
def order(groups, bounds, seed, form, epoch):
    every, many, first, window = np.arange(groups.sum()), len(groups), np.append(0, np.cumsum(groups)), form["window"]
    if seed is None:  # as they are stored
        return every
    if "interleave" in form:
        return strands(groups, len(bounds) - 1, seed, form["interleave"], epoch)
    if window == "all":
        by_epoch = word(word(word(0, np.array([seed], U)), [5]), [epoch])
        return permuted(every, np.full(len(every), len(every)), np.repeat(by_epoch, len(every)))
    by_group, by_window = (word(word(word(0, np.array([seed], U)), [kind]), [epoch]) for kind in (1, 2))
    laid = permuted(np.arange(many), np.full(many, many), np.repeat(by_group, many))
    begins, lane = np.append(0, np.cumsum(groups[laid])), np.searchsorted(bounds, every, "right") - 1
    number = (np.searchsorted(begins, every, "right") - 1) // window
    low, high = begins[number * window], begins[np.minimum(number * window + window, many)]
    low, high = np.maximum(low, bounds[lane]), np.minimum(high, bounds[lane + 1])
    moved = low + permuted(every - low, high - low, word(word(by_window, lane), number))
    index = np.searchsorted(begins, moved, "right") - 1
    return first[laid[index]] + moved - begins[index]


def read(deliveries, name, groups, form):  # how often each row was read
    found = np.zeros(groups.sum(), np.int64)
    for each in (each for each in deliveries if each["source"] == name):
        bounds = cut(len(found), len(each["end"]))
        lane, rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)), np.diff(bounds)
        (begin, end), place = (np.array(each[at])[lane] for at in ("begin", "end")), np.arange(len(lane)) - bounds[lane]
        for epoch in range(int((begin // rows[lane]).min()), int((-(-end // rows[lane])).max())):
            now = place + epoch * rows[lane]
            found[order(groups, bounds, each["seed"], form, epoch + each["epoch"])] += (begin <= now) & (now < end)
    return found


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def check(data, key, store, takedown=None):
    told, sha256 = json.loads(data), lambda data: hashlib.sha256(data).hexdigest()
    need(canonical(told) + b"\n" == data and told["public_key"] == key, "written again, or signed by another key")
    mark, listed, state = told.pop("signature"), told["takedown"] or {"deliveries": []}, told["state"]
    need(signed(bytes.fromhex(key), canonical(told), bytes.fromhex(mark)) and mark == mark.lower(), "another signature")
    need((sha256(takedown.read_bytes()) if takedown else None) == listed.get("sha256"), "another takedown list")
    gone = pq.read_table(takedown, columns=["file", "position"]).to_pylist() if takedown else []
    for name, dataset in told["datasets"].items():
        version, _, split = dataset["name"].partition("/")
        folder = store.joinpath(*version.rsplit("@", 1))
        manifest = json.loads((folder / "manifest.json").read_bytes())
        need(manifest.pop("sha256") == dataset["manifest"] == sha256(canonical(manifest)), f"{version} is another one")
        files = [each for each in manifest["files"] if each["split"] == split]
        need(all(sha256((folder / file["path"]).read_bytes()) == file["sha256"] for file in files), f"damaged {name}")
        groups = np.concatenate([np.diff([*each["row_groups"], each["rows"]]) for each in files])
        form = state | state["sources"][name]  # each source of a mixture has an order of its own
        rows, stated = read(told["deliveries"], name, groups, form), told["sources"][name]
        columns = ["segment_lengths", "documents"] if (packed := dataset["kind"] == "packed") else ["file", "position"]
        held = [row for each in files for row in pq.read_table(folder / each["path"], columns=columns).to_pylist()]
        ids = sum(n * sum(row["segment_lengths"]) for n, row in zip(rows.tolist(), held, strict=True) if packed)
        epochs = [stated["repetitions"][part] for part in ("whole", "rest", "of")]
        need([*divmod(int(rows.sum()), len(rows)), len(rows)] == epochs and rows.sum() == stated["rows"], name)
        need(ids == stated["tokens"] or not packed, f"tokens of {name}")
        inputs = [(each["file_id"], name) for each in manifest["inputs"] for name in (each["file_id"], each["path"])]
        wanted = {(file, row["position"]) for row in gone for file, name in inputs if row["file"] == name}
        late = (held[row] for row in np.flatnonzero(read(listed["deliveries"], name, groups, form)))
        pieces = ((each["file"], each["position"]) for row in late for each in (row["documents"] if packed else [row]))
        need(wanted.isdisjoint(pieces), f"{name}: a document of the takedown list was read")
    return told


if __name__ == "__main__":
    told = check(Path(sys.argv[1]).read_bytes(), sys.argv[2], Path(sys.argv[3]), *map(Path, sys.argv[4:]))
    print(f"holds: steps {told['steps']}, takedown: {told['takedown'] and told['takedown']['none_from']}")
