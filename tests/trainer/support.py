"""What the cases of these tests share."""

from __future__ import annotations

import os


def compile_quickly() -> None:
    """Spend little on code that runs for milliseconds; before JAX is first asked for its devices."""
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            "--xla_cpu_multi_thread_eigen=false",
        ]
    )
