"""The Prefect flows of Tokenlake.

They are ``tokenize``, ``mix``, ``clean``, ``verify``, ``push`` and ``work``.

A module is named like its flow, and deployments name both:
``tokenlake_flows.tokenize:tokenize``. A flow is a graph of tasks of
:mod:`tokenlake_tasks`; the work itself is in the library.
:func:`tokenlake_flows.launch.launch` runs `tokenize` or `mix` for a command, with a
Prefect server of the run's own. Importing this package, or ``tokenlake_flows.launch``,
does not import Prefect.
"""
