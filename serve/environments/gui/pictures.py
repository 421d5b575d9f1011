"""How much of the screen changed.

What it does: compares each screenshot with the one before, pixel by pixel.
What it leaves out: where they differ; what a picture shows.
"""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


class Screens:
    """The screenshots of one episode, of which the last is kept."""

    def __init__(self) -> None:
        self._png = b""
        self._picture: Image | None = None

    def changed(self, png: bytes) -> float:
        """The share of pixels, 0 to 1, whose colour differs from the screenshot before. The first changes nothing."""
        if png == self._png:
            return 0.0
        from PIL import Image, ImageChops

        before, after = self._picture, Image.open(io.BytesIO(png)).convert("RGB")
        self._png, self._picture = png, after
        if before is None:
            return 0.0
        if before.size != after.size:
            return 1.0
        difference = ImageChops.difference(before, after)
        box = difference.getbbox()
        if box is None:
            return 0.0
        red, green, blue = difference.crop(box).split()
        most = ImageChops.lighter(ImageChops.lighter(red, green), blue)
        same = most.histogram()[0]
        return round((most.width * most.height - same) / (after.width * after.height), 6)
