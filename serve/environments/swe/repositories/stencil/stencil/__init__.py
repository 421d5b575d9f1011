"""A very small template engine."""

from stencil.errors import TemplateError
from stencil.filters import FILTERS, Safe, escape
from stencil.nodes import Template


def render(source: str, **values: object) -> str:
    """The template's text, filled with these values."""
    return Template(source).render(values)


__all__ = ["FILTERS", "Safe", "Template", "TemplateError", "escape", "render"]
