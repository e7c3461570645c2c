"""Hooks of schemathesis that generate valid images."""

import io

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
schemathesis.openapi.media_type("application/octet-stream", st.sampled_from(_pictures()))
