"""Flows for deployments whose configuration leaves something open.

The form marks such parameters as required.

The form that starts a run is made of a flow's signature, and a deployment cannot change
it. So a deployment that needs an input names a flow of its own here. It has the name,
the code and the parameters of the flow that it is made of, and some of them have no
default::

    tokenize        config = "", data_files = "", ...      demo: everything is in the configuration
    tokenize_files  data_files, config = "", ...           llama2-2048: Prefect asks for `data_files`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from prefect import Flow, flow

from tokenlake_flows.clean import clean
from tokenlake_flows.mix import mix
from tokenlake_flows.tokenize import tokenize


def requiring(whole: Flow[..., Any], *names: str) -> Flow[..., Any]:
    """Return a flow like another one, without a default for some parameters.

    Args:
        whole: The flow.
        names: Names of the parameters that must be given.
    """
    function: Callable[..., Any] = whole.fn
    signature = inspect.signature(function, eval_str=True)
    required: list[inspect.Parameter] = []
    optional: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in names:
            required.append(parameter.replace(default=inspect.Parameter.empty))
        else:
            optional.append(parameter)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        bound = call_signature.bind(*arguments, **options)
        return function(**bound.arguments)

    # Parameters without a default come first, as in every signature.
    call_signature = signature.replace(parameters=[*required, *optional])
    call.__signature__ = call_signature  # pyright: ignore[reportAttributeAccessIssue] - Prefect reads it
    options: Any = {"flow_run_name": whole.flow_run_name, "persist_result": False}
    return flow(name=whole.name, **options)(call)


tokenize_files = requiring(tokenize, "data_files")
"""The flow `tokenize` of a configuration without data."""

mix_files = requiring(mix, "data_files", "tokenizer")
"""The flow `mix` of a configuration without data and without a tokenizer."""

clean_config = requiring(clean, "config")
"""The flow `clean`, whose configuration must have a section `clean`."""
