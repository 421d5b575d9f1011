"""A cache in memory with a size and a time to live."""

from keepsake.cache import MISSING, Cache, Statistics
from keepsake.memo import make_key, memoize

__all__ = ["MISSING", "Cache", "Statistics", "make_key", "memoize"]
