"""What people and monitors see of work that goes on: messages, progress in the form that was asked for, metrics.

``tally`` adds up, ``display`` shows a tally in one of four forms, ``build`` brings both to a build and to a pipeline.
All of it follows section ``observability`` of a configuration.
"""
