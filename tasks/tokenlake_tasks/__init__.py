"""The Prefect tasks of Tokenlake's flows.

Each is one call of the library, with retries and a line in the run's log.

A module is named like its task: ``from tokenlake_tasks.plan import plan``. The tasks of
a build take the :class:`tokenlake.runs.engine.LocalEngine` of the run.

============  ==========================================================================================
``plan``      Wait for the plan: inputs, units, the version that is claimed.
``build``     Build a group of units. Its steps are the five tasks below, which run in worker processes.
``load``      Step: inputs are read and parsed.
``tokenize``  Step: texts become token ids.
``mix``       Step: rows of stored datasets are put in the order of the mixture.
``pack``      Step: documents are laid into rows of fixed length.
``save``      Step: Parquet files are written and published.
``commit``    Make the version visible.
``export``    Write the copies that the configuration asks for.
``report``    Write the report into the store, and publish the result as an artifact.
============  ==========================================================================================

The flows of maintenance have ``clean``, ``verify`` and ``push``.
"""
