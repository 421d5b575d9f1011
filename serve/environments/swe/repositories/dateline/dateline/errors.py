"""The one error of this library."""


class DateError(ValueError):
    """A text that is no date, offset or duration."""
