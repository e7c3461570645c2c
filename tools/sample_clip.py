"""The sample clip of the page: a camera that moves over two of the sample photos, as VP9 in WebM.

    pip install av
    python -m tools.sample_clip app/static/page/samples/clip.webm

PyAV encodes it because OpenCV cannot set a bit rate. Nothing else in the project needs PyAV.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from mien.data.contract import Array, decode

PHOTOS = Path(__file__).resolve().parents[1] / "samples" / "photos"
SIZE_PX = (480, 360)
FRAMES_PER_S = 20
SECONDS = 10
ENCODER = {"crf": "33", "b": "500k", "deadline": "good", "cpu-used": "5"}  # options of FFmpeg's libvpx-vp9
# Keyframes of the camera: second, then center and width of its view, in pixels of both photos side by side.
KEYFRAMES = (
    (0.0, 560, 300, 790),
    (1.5, 560, 300, 790),
    (4.0, 300, 200, 470),
    (5.5, 340, 210, 470),
    (8.0, 840, 250, 500),
)


def side_by_side() -> Array:
    """Both photos, 600 pixels high: (600, 1112, 3) uint8 RGB."""
    astronaut, hopper = (decode((PHOTOS / name).read_bytes()) for name in ("astronaut.jpg", "grace_hopper.jpg"))
    return np.hstack([cv2.resize(astronaut, (600, 600), interpolation=cv2.INTER_CUBIC), hopper])


def views() -> Iterator[Array]:
    """Views of the camera, (360, 480, 3) uint8 RGB; the last leads back to the first."""
    photo = side_by_side()
    stops = np.array([*KEYFRAMES, (SECONDS, *KEYFRAMES[0][1:])], np.float64)
    for number in range(FRAMES_PER_S * SECONDS):
        x, y, width = _at(stops, number / FRAMES_PER_S)
        height = width * SIZE_PX[1] / SIZE_PX[0]
        left = np.clip(x - width / 2, 0, photo.shape[1] - width)
        top = np.clip(y - height / 2, 0, photo.shape[0] - height)
        scale = SIZE_PX[0] / width
        shift = np.array([[scale, 0, -left * scale], [0, scale, -top * scale]])
        yield cv2.warpAffine(photo, shift, SIZE_PX, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)


def _at(stops: Array, time_s: float) -> Array:
    """Center and width at a time, eased between keyframes."""
    after = int(np.searchsorted(stops[:, 0], time_s, side="right"))
    before, following = stops[after - 1], stops[after]
    share = (time_s - before[0]) / (following[0] - before[0])
    eased = share * share * (3 - 2 * share)
    there: Array = before[1:] + eased * (following[1:] - before[1:])
    return there


def main(path: Path) -> None:
    """Write the clip."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=FRAMES_PER_S, options=ENCODER)
        stream.width, stream.height = SIZE_PX
        for view in views():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
