"""Schemathesis hooks that generate valid images of a size accepted by every option."""

import base64
import io

import schemathesis
from hypothesis import strategies as st
from PIL import Image


def _images() -> list[bytes]:
    images = []
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        buffer = io.BytesIO()
        Image.new("RGB", (112, 112), (200, 120, 80)).save(buffer, kind)
        images.append(buffer.getvalue())
    return images


schemathesis.openapi.format("binary", st.sampled_from(_images()))
schemathesis.openapi.format("byte", st.sampled_from([base64.b64encode(one).decode() for one in _images()]))
schemathesis.openapi.media_type("application/octet-stream", st.sampled_from(_images()))
