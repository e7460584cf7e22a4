"""Every call on the store of a build is hit once: by SIGKILL, by an error of the disk, by a full disk.

Enumerated, not sampled (``--faults all``): an undisturbed run under strace says which calls there are, in which
thread; then each of them is hit in a run of its own. See :mod:`tests.faults.crash_support` for the laws.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Cases
from tests.faults.crash_scenarios_support import scenarios
from tests.faults.crash_support import FAMILIES, Bench, Fault, Scenario, bench_in, require_strace

#: Of 100 chosen calls so many may not be met again: two workers share the units as it happens.
MISSED = 10


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    require_strace(folder)
    with bench_in(folder) as bench:
        yield bench


@pytest.fixture(scope="module")
def disturbed(bench: Bench, tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> list[Scenario]:
    return scenarios(tmp_path_factory.mktemp("scenarios"), tokenizer_dir)


@pytest.mark.parametrize("fault", ["KILL", "EIO", "ENOSPC"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_call_that_is_hit_costs_nothing_that_was_finished(
    family: str, fault: Fault, bench: Bench, disturbed: list[Scenario], cases: Cases
) -> None:
    every = [case for scenario in disturbed for case in bench.enumerate(scenario, family, fault)]
    assert every, f"no {family} on the store: is it another call on this machine?"
    chosen, missed = cases.choose(every, sample=2), 0
    for case in chosen:
        verdict = bench.run(case)
        if not verdict.hit:
            missed += 1
            continue
        cases.add(
            f"crash: {family} {fault}",
            survived=not verdict.wrong,
            redone=verdict.redone,
            silent=verdict.silent,
            note=f"{case}: {'; '.join(verdict.wrong)}" if verdict.wrong else "",
        )
    assert missed <= max(2, len(chosen) * MISSED // 100), f"{missed} of {len(chosen)} calls were not met"
