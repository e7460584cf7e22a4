"""The tour: ``python -m tokenlake.demo [DIRECTORY] [--no-prefect]``. `make demo` runs it.

It makes a corpus and a tokenizer, then runs the commands a user would type, each shown before it runs.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from tokenlake.demo.corpus import demo_settings
from tokenlake.numbers import duration

_QUESTION = """\
select source, count(*) as documents, sum(tokens) as tokens, max(tokens) as longest
from (select source, file, position, sum(length) as tokens from "demo/documents" group by all)
group by source order by source"""


def main(arguments: Sequence[str]) -> int:
    """Run the tour; returns the exit code of the first command that fails."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    folders = [argument for argument in arguments if not argument.startswith("-")]
    if set(flags) - {"--no-prefect"} or len(folders) > 1:
        _say(__doc__ or "")
        return 2
    began = time.monotonic()
    config, store = _prepare(Path(folders[0] if folders else ".demo"))
    commands = [
        ["run", config, *flags],
        ["peek", "demo", "-n", "2", "--row", "1", "--store", store],
        ["sql", _QUESTION, "--store", store],
    ]
    for command in commands:
        if code := _run(command):
            return code
    _say(_closing(config, store, time.monotonic() - began))
    return 0


def _prepare(directory: Path) -> tuple[str, str]:
    """Make what the run needs; returns the paths of configuration and store, as a user would type them."""
    _say(f"preparing corpus, tokenizer and configuration in {directory}/")
    settings = demo_settings(directory, lambda line: _say(f"  {line}"))
    path = directory / "demo.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return str(path), str(directory / "artifacts")


def _run(command: Sequence[str]) -> int:
    _say(f"\n$ tokenlake {shlex.join(command)}\n")
    try:
        return subprocess.run([sys.executable, "-P", "-m", "tokenlake", *command], check=False).returncode
    except KeyboardInterrupt:
        return 130  # the command got the same Ctrl-C and has said what there is to say


def _closing(config: str, store: str, seconds: float) -> str:
    return f"""
The tour took {duration(seconds)}. Run again, it finds the version and rebuilds nothing. Try next:

  export TOKENLAKE_STORE={shlex.quote(store)}
  tokenlake show demo             totals, splits, the account, lineage
  tokenlake verify demo --deep    every byte, checksum and count
  tokenlake sql                   what there is to ask
  tokenlake plan {config} --set pack.seq_length=2048
"""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
