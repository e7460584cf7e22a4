"""Jobs as the store holds them: open to its readers, independent of its address.

Each field of a job is JSON text of its own, so that fields that many jobs share are
stored once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from tokenlake import errors
from tokenlake.base.secrets import hide, provided_blocks, scrub
from tokenlake.etl.job.lines import job_of
from tokenlake.etl.job.messages import Job, MixJob, RepackJob
from tokenlake.runtime.store.address import StoreAddress

_STORES: Final = ("store", "parents_store")
"""Fields of a job that hold addresses of stores; they are not stored."""

_BELOW: Final = "below"
"""Field that replaces the stores of a job of parents: the path from the parents' store
to the unit's. It is not empty for a repair, which builds in a folder of the store.
"""


def fields_of(job: Job) -> dict[str, str]:
    """Return the fields of a job except its stores, each as JSON text.

    The text is ASCII: names of files may hold bytes that are not UTF-8.

    Raises:
        ConfigError: The job reads one store and writes another one that is not below
            it.
    """
    builtins: dict[str, Any] = msgspec.to_builtins(job, str_keys=True)
    fields: dict[str, str] = {}
    for field_name, field_value in builtins.items():
        if field_name not in _STORES:
            fields[field_name] = json.dumps(
                field_value, sort_keys=True, separators=(",", ":")
            )
    if isinstance(job, MixJob | RepackJob):
        fields[_BELOW] = json.dumps(_path_below_parents(job))
    return fields


def job_from(fields: Mapping[str, str], store: StoreAddress) -> Job:
    """Return the job of stored fields, with a store at this address."""
    builtins = {name: json.loads(text) for name, text in fields.items()}
    options = dict(store.options)
    builtins["store"] = {"url": store.url, "options": options}
    # The store of the parents has the URL of the unit's store without the path below
    # it.
    path_below_parents = builtins.pop(_BELOW, None)
    if path_below_parents is not None:
        parents_url = store.url.removesuffix(path_below_parents)
        builtins["parents_store"] = {"url": parents_url, "options": options}
    return cast("Job", job_of(json.dumps(builtins).encode()))


def check_open(text: str) -> None:
    """Check that jobs, as text, hold no secrets and may leave this machine.

    Raises:
        ConfigError: They hold secrets.
    """
    # Blocks of this process, values that it knows as secrets, and URLs that look like
    # they hold one.
    if provided_blocks() or hide(text) != text or scrub(text) != text:
        raise errors.ConfigError(
            "this executor sends jobs to other machines, and this build contains secrets: values, URLs with "
            "passwords or signatures, or Prefect blocks. Write {env: NAME}, which each worker reads from its own "
            "environment, or use the executor local"
        )


def _path_below_parents(job: MixJob | RepackJob) -> str:
    """Return the path from the store of a job's parents to the store of its unit.

    It is empty if they are the same.

    Raises:
        ConfigError: The unit's store is not below that of the parents.
    """
    path = job.store.url.removeprefix(job.parents_store.url)
    # The URL of a folder of a similar name has the same beginning, but no slash after
    # it.
    is_elsewhere = path == job.store.url or path[:1] not in ("", "/")
    if path and is_elsewhere:
        raise errors.ConfigError(
            f"{job.dataset}@v{job.version}: its parents are in {job.parents_store}, and it goes to {job.store}; "
            "workers that join read only one store"
        )
    return path
