"""File layouts of other trainers, for writing and for reading.

They are headers, indexes and type codes.

A module describes one layout, as bytes and arrays. Exports
(:mod:`tokenlake.etl.export`) write files with it, and the sources that read such files
(:mod:`tokenlake.etl.sources`) use the same constants. The modules are imported by their
names: ``from tokenlake.etl.layouts import megatron``.
"""
