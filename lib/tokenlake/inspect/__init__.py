"""Finding out what a source holds, and how to build from it, without reading it through.

Like a customs officer: :class:`DatasetIntrospector` opens a few of the parcels and lifts a corner, writes
down what is in them, and fills in the form. :class:`ColumnMapper` knows what things are called elsewhere.
"""
