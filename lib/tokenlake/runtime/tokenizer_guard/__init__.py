"""Safe opening of a tokenizer.json that somebody else wrote.

It must not take the memory or the time of this process. These are the steps:

1. :mod:`~tokenlake.runtime.tokenizer_guard.shape` parses the file, and refuses values
   that no tokenizer can mean.
2. :mod:`~tokenlake.runtime.tokenizer_guard.caution` compares its parts with the known
   harmless forms.
3. :mod:`~tokenlake.runtime.tokenizer_guard.loading` loads a harmless tokenizer into
   this process, and any other into a process of its own
   (:mod:`~tokenlake.runtime.tokenizer_guard.process`), whose time and memory the kernel
   bounds.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
