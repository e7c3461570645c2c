"""Schemathesis hooks that generate valid images of a size accepted by every option."""

import base64
import io

import schemathesis
from hypothesis import strategies as st
from PIL import Image


def _pictures() -> list[bytes]:
    pictures = []
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        buffer = io.BytesIO()
        Image.new("RGB", (112, 112), (200, 120, 80)).save(buffer, kind)
        pictures.append(buffer.getvalue())
    return pictures


schemathesis.openapi.format("binary", st.sampled_from(_pictures()))
schemathesis.openapi.format("byte", st.sampled_from([base64.b64encode(one).decode() for one in _pictures()]))
schemathesis.openapi.media_type("application/octet-stream", st.sampled_from(_pictures()))
