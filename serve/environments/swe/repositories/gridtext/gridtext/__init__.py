"""Text in columns for terminals."""

from gridtext.table import Table
from gridtext.width import cells, cut, pad
from gridtext.wrapping import wrap

__all__ = ["Table", "cells", "cut", "pad", "wrap"]
