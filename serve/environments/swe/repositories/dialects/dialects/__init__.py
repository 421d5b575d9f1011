"""Separated values as they are found."""

from dialects.dialect import Dialect, DialectError
from dialects.reader import read, read_dicts
from dialects.sniffer import sniff
from dialects.writer import write

__all__ = ["Dialect", "DialectError", "read", "read_dicts", "sniff", "write"]
