"""What schemathesis cannot know: which bytes are a picture, and that this model has no explanation to give."""

import io
from typing import Any

import schemathesis
from hypothesis import strategies as st
from PIL import Image


def _pictures() -> list[bytes]:
    pictures = []
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        for size in ((1, 1), (40, 30), (220, 160)):
            buffer = io.BytesIO()
            Image.new("RGB", size, (200, 120, 80)).save(buffer, kind)
            pictures.append(buffer.getvalue())
    return pictures


schemathesis.openapi.format("binary", st.sampled_from(_pictures()))
for name in ("jpeg", "png", "webp", "bmp", "gif", "tiff"):
    schemathesis.openapi.media_type(f"image/{name}", st.sampled_from(_pictures()))


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Explanations are refused by a model that has none: that is tested elsewhere."""
    if query and query.get("explain") in (True, "true"):
        query["explain"] = "false"
    return query
