"""Schemathesis hooks that generate valid images of a size accepted by every option."""

import base64
from typing import Any

import schemathesis
from hypothesis import strategies as st
from PIL import Image

from tests.support import encoded

_PLAIN = Image.new("RGB", (112, 112), (200, 120, 80))
IMAGES = [encoded(_PLAIN, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]

schemathesis.openapi.format("binary", st.sampled_from(IMAGES))
schemathesis.openapi.format("byte", st.sampled_from([base64.b64encode(image).decode() for image in IMAGES]))
for kind in ("application/octet-stream", "image/*", "image/webp", "image/png", "image/jpeg", "image/gif"):
    schemathesis.openapi.media_type(kind, st.sampled_from(IMAGES))


@schemathesis.hook
def before_load_schema(_context: Any, document: dict[str, Any]) -> None:
    """Leave out boxes: whether they are valid depends on their image and on `whole`, which no schema can state."""
    del document["components"]["schemas"]["EncodedImage"]["properties"]["boxes"]
