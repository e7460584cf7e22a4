"""What a record of somebody else's run may not make repair do.

``runs/`` lies in the store, and whoever writes a store may write there that a function is to run, or that a variable of
this machine is a password to be sent to a server. Inputs are compared with the manifest's fingerprints; for the rest
the user gives the configuration, and with it the word that it may be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from tokenlake.config.callables import is_callable_name
from tokenlake.errors import ConfigError

_STEPS = ("transforms", "format_callback")
_REFERENCES = (["env"], ["block"])


def check_record(config: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError where a recorded configuration asks for what only the user may ask for.

    Args:
        config: as JSON, as it lies in ``runs/``.
        where: the version, for the message.
    """
    # The options of the store that it has are not used: those are, that the user opened it with.
    asked = [what for key, value in config.items() if key != "save" for what in _delicate(value, key, "")]
    if asked:
        shown = "; ".join(list(dict.fromkeys(asked))[:5])
        raise ConfigError(
            f"{where}: how its run was asked, as the store has it, is not enough to build anything again, for it would "
            f"use {shown}. Look at it, and give the configuration with --config FILE (in Python config=...)"
        )


def _delicate(value: Any, key: str, path: str, steps: bool = False) -> Iterator[str]:
    path, steps = f"{path}.{key}".lstrip("."), steps or key in _STEPS
    if key == "trust_remote_code" and value:
        yield f"remote code ({path})"
    elif steps and is_callable_name(value):
        yield f"the function {value} ({path})"
    elif isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if list(fields) in _REFERENCES:
            kind, name = next(iter(fields.items()))
            yield f"the secret {{{kind}: {name}}} ({path})"
        for name, each in fields.items():
            yield from _delicate(each, name, path, steps)
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from _delicate(each, str(index), path, steps)
