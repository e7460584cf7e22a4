"""The fluent pipeline: rows of files to batches, stage by stage, in this process.

A build (:mod:`tokenlake.build`) is a factory: many workers, a store, versions, an account. A pipeline is a hand tool
made of the same parts: a chain of sources, each a thin layer over the one before. Calling a stage lays a layer; rows
flow only when somebody draws them, or when they are saved.

=============  ==========================================================================================
module         what is in it
=============  ==========================================================================================
`pipeline`     :class:`Pipeline` and :func:`create_pipeline`
`stage`        :class:`BaseStage`, which every stage is, also one of yours
`context`      :class:`PipelineContext`: what stages know of the pipeline and of each other
`sequence`     which stage may come after which
`acting`       which options this pipeline does not act on
`sourcing`, `tokenizing`, `mixing`, `packing`, `saving`, `loading`    the stages
`saved`        rows that are written once and read back from there
`cached`       rows that are kept on disk while they are drawn for the first time
`loader`       :class:`AsyncDataLoader`: rows to batches, prepared ahead by threads
`rowloader`, `rowbatches`, `places`    delivering rows, their order, and where an epoch is taken up again
`devices`      batches as `jax.Array`
`batches`, `shuffling`    more of its parts
=============  ==========================================================================================
"""
