"""What the cases of these tests share."""

from __future__ import annotations

import os
from pathlib import Path

import jax


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


def compile_once(folder: Path) -> None:
    """Keep what is compiled in a folder: many trainers of a case have the same functions."""
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
