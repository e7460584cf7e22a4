"""Benchmarks of Tokenlake and comparable systems, in CPU seconds of whole process trees.

``python -m benchmarks`` runs the suite. README.md describes the parts and the tables.

::

    text.py          text of this machine: find, filter, deduplicate
    inputs.py        JSON Lines inputs of any size, made of that text
    vocabularies.py  tokenizers: real ones if available, otherwise trained here
    measure.py       CPU, wall time and memory of a command with its process tree
    systems/         one program per compared system, run by measure.py
    contenders.py    compared systems: command line and expected output of each
    rotation.py      warm-up, A B C A B C, medians
    goals.py         ratios, and goals of the project
    builds.py        configuration and store of Tokenlake builds
    determinism.py   identical versions for 1 and 2 workers, and after kill -9
    memory.py        peak memory on a large input and on a huge document
    small.py         20,000 files of 1.5 KB, and 5,000 units
    adding.py        additions to a large dataset, a rerun, a count, requests on S3
    cleaning.py      near duplicates and filters, compared with datatrove (own program)
    cores.py         builds with 1 to 16 workers, measured or simulated (own program)
    schedule.py      half a million units on a simulated cluster
    startup.py       time from the command to the first unit
    machine.py       description of the machine
    report.py        report as Markdown and JSON
"""
