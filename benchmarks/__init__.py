"""What Tokenlake costs, against its peers, measured as CPU seconds of whole process
trees.

``python -m benchmarks`` runs it; README.md here says what is measured and how to read
the table.

::

    text.py          the machine's own text: find, filter, deduplicate
    inputs.py        JSON Lines inputs of any size made from it
    vocabularies.py  the two tokenizers: real ones where there are, else trained on the spot
    measure.py       one command: CPU, wall and memory of its whole process tree (runs on its own)
    systems/         what is compared: one program per system, run by measure.py
    contenders.py    the table of those systems: how each is started, what it should produce
    rotation.py      warm-up, A B C A B C, medians
    goals.py         ratios, and the project's goals judged
    builds.py        Tokenlake's configuration and store as the checks below use them
    determinism.py   identical trees for 1 and 2 workers, and after kill -9
    memory.py        peak memory on a large input and on one huge document
    small.py         20,000 files of 1.5 KB, and 5,000 units, beside a bare loop and a few units
    adding.py        a file more beside 20,000, nothing new, a count over 46,000 shards, requests on S3
    cleaning.py      near duplicates and filters beside datatrove's (runs on its own)
    cores.py         builds with 1 to 16 workers beside as many bare loops; simulated on fewer cores (runs on its own)
    schedule.py      half a million units on a simulated cluster
    startup.py       from the command to the first unit
    machine.py       what all this ran on
    report.py        Markdown and JSON
"""
