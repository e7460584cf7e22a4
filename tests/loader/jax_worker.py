"""What a process of its own runs: ``python -m tests.loader.jax_worker MODULE ANSWER
PLACE``; see ``jax_support``.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
from pathlib import Path

import jax


def main(case: str, answer: str, place: str) -> None:
    told = json.loads(place)
    # What hangs says where, before it is ended.
    faulthandler.dump_traceback_later(told["seconds"])
    if told["address"]:
        jax.distributed.initialize(
            told["address"],
            told["processes"],
            told["index"],
            coordinator_bind_address=told["address"],
            initialization_timeout=60,
            shutdown_timeout_seconds=60,
        )
    found = importlib.import_module(case).main(told["facts"])
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
