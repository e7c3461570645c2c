"""Head pose estimated from five landmarks."""

from typing import Final

import cv2
import numpy as np

from mien.data.contract import Array

# Eyes, nose tip and mouth corners of an average head, millimeters; x to the right, y down, z away from the camera.
_HEAD_MM: Final = np.array(
    [[-31.5, -34.0, 26.0], [31.5, -34.0, 26.0], [0.0, 0.0, 0.0], [-25.0, 36.0, 22.0], [25.0, 36.0, 22.0]], np.float64
)
_FOCAL: Final = 8.0  # focal length in widths of the face: nearly no perspective


def head_pose(landmarks_px: Array) -> tuple[float | None, float | None]:
    """Estimate yaw and pitch in degrees; None if the points do not determine them.

    For sorting and filtering only: with five landmarks and an average head, errors are 5 to 10 degrees. The roll is
    removed first, so it does not affect the result.

    Args:
        landmarks_px: (5, 2) float, x then y: image-left eye, image-right eye, nose, image-left and -right mouth corner.
    """
    points = np.asarray(landmarks_px, np.float64)
    across = points[1] - points[0] + points[4] - points[3]
    size = float(np.hypot(*across)) / 2
    if not np.isfinite(points).all() or size < 1e-3:
        return None, None
    cosine, sine = across / np.hypot(*across)
    upright = (points - points.mean(axis=0)) @ np.array([[cosine, -sine], [sine, cosine]]) / size
    camera = np.array([[_FOCAL, 0, 0], [0, _FOCAL, 0], [0, 0, 1.0]])
    solved, rotation, _ = cv2.solvePnP(_HEAD_MM, upright, camera, None, flags=cv2.SOLVEPNP_SQPNP)
    if not solved:
        return None, None
    matrix, _ = cv2.Rodrigues(rotation)
    forward = matrix @ np.array([0.0, 0.0, -1.0])  # the nose of a frontal face points at the camera
    yaw = np.degrees(np.arctan2(forward[0], -forward[2]))
    pitch = np.degrees(np.arcsin(np.clip(-forward[1], -1, 1)))
    return round(float(yaw), 1), round(float(pitch), 1)
