"""Types are taken apart by one thread at a time: msgspec ends the process where two
do it at once.
"""

from __future__ import annotations

import subprocess
import sys

_RACE = """
import sys, threading
from dataclasses import make_dataclass
from tokenlake.base.typed_json import converted, decoder

sys.setswitchinterval(1e-6)
inner_data = {f"a{n}": 1 for n in range(12)}
data = {f"b{n}": inner_data for n in range(6)}
text = repr(data).replace("'", '"').encode()
for number in range(400):
    inner = make_dataclass(f"Inner{number}", [(name, int) for name in inner_data])
    outer = make_dataclass(f"Outer{number}", [(name, inner) for name in data])
    # Two that share a type, and both ways to a value.
    other = make_dataclass(f"Other{number}", [(name, inner) for name in data])
    start, found = threading.Barrier(4), []
    acts = [
        lambda: decoder(outer).decode(text),
        lambda: converted(data, outer),
        lambda: decoder(other).decode(text),
        lambda: converted(data, other),
    ]
    threads = [threading.Thread(target=lambda act=act: (start.wait(), found.append(act()))) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(each.b5.a11 == 1 for each in found)
"""


def test_threads_meet_a_type_for_the_first_time_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RACE],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
