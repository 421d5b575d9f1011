"""How much of the screen changed.

What it does: compares two screenshots, pixel by pixel.
What it leaves out: where they differ; what a picture shows.
"""

import io


def changed_share(before: bytes, after: bytes) -> float:
    """The share of pixels, 0 to 1, whose colour differs between two PNG files. Other sizes: everything changed."""
    if before == after:
        return 0.0
    from PIL import Image, ImageChops

    one, two = (Image.open(io.BytesIO(png)).convert("RGB") for png in (before, after))
    if one.size != two.size:
        return 1.0
    bands = ImageChops.difference(one, two).split()
    most = ImageChops.lighter(ImageChops.lighter(bands[0], bands[1]), bands[2])
    return round(1 - most.histogram()[0] / (one.width * one.height), 6)
