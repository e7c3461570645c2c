"""One ONNX graph from the pixels of a photo to its faces with calibrated expressions.

The graph holds what serving does after decoding: the search of the detector, alignment by five landmarks, the
classifier, calibration, softening by quality, and agreement. A browser, a GPU and any other language run it with
ONNX Runtime alone (docs/models.md). `mien export` and `mien quantize` write it beside the graphs of the crop.

The Python path of `mien.app.inference` is the reference, and a test compares both. Out of scope: turned copies of
photos on their side, and tiles of panoramas.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, inliner, numpy_helper
from onnx_ir.passes import common as passes
from onnxscript import BOOL, FLOAT, INT64, UINT8, graph, script
from onnxscript import opset20 as op
from onnxscript.values import Opset

from mien.data import quality
from mien.data.contract import CROP_PX, TEMPLATE_PX
from mien.data.quality import (
    AMBIGUOUS_BELOW,
    FACE_SHARE,
    MAX_BLUR_PX,
    MAX_COVERED,
    USUAL_SOFTNESS_PX,
    USUAL_YAW,
    VOTES_SOFTENING,
)
from mien.models.manifest import DETECTOR_OUTPUTS, LOGITS, Manifest

networks: Final = Opset("mien.networks", 1)
_IR_VERSION: Final = 10
MAX_FACES: Final = 200  # default of the input, as of serving


def _tensor(values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype))


def _gaussian(radius: int, sigma: float) -> Any:
    """(11,) kernel of a Gaussian blur that reaches `radius` pixels."""
    x = np.arange(-5, 6)
    kernel = np.where(np.abs(x) <= radius, np.exp(-(x**2) / (2 * sigma**2)), 0.0)
    return kernel / kernel.sum()


_PX: Final = float(CROP_PX)
_CENTER: Final = np.mean(TEMPLATE_PX, axis=0)
_TEMPLATE: Final = _tensor(TEMPLATE_PX - _CENTER)  # (5, 2)
_X: Final = _tensor(np.tile(np.arange(CROP_PX), CROP_PX) - _CENTER[0])
_Y: Final = _tensor(np.arange(CROP_PX).repeat(CROP_PX) - _CENTER[1])
_LUMA: Final = _tensor(np.reshape(quality.LUMA, (1, 3, 1, 1)))
_RESAMPLED, _RESAMPLED_SHARE = quality.RESAMPLED_PX
_SMOOTHED, _REBLUR, _MM = quality.SMOOTHED_PX**2, quality.REBLUR_PX**2, quality.WIDTH_MM / quality.NOSE_MM
_KERNELS: Final = np.stack([_gaussian(2, _SMOOTHED**0.5 / 2), _gaussian(5, (_SMOOTHED + _REBLUR) ** 0.5 / 2)])
_BLURS: Final = _tensor(_KERNELS.reshape(2, 1, 1, 11))
_BLURS_DOWN: Final = _tensor(_KERNELS.reshape(2, 1, 11, 1))
_SLOPES: Final = _tensor(list(quality.SLOPES.values()))
_HIDDEN, _HIDDEN_BIAS, _OUTPUT, _OUTPUT_BIAS = (_tensor(values, np.float16) for values in quality.COVER.values())
_NO_FACES: Final = _tensor(np.empty((0, 15)))
_BGR: Final = _tensor(np.eye(3)[::-1])
_SMALL, _BLURRED, _TURNED, _DARK, _COVERED = quality.LIMITS.values()


@script()
def resized(image: UINT8["height", "width", 3], long_side_px: FLOAT) -> tuple[FLOAT[1, 3, "rows", "columns"], FLOAT[2]]:
    """Reduce to a long side of at most `long_side_px`, BGR, or enlarge tiny images up to four times.

    A reduced pixel is the mean of all its columns and of two rows. ONNX Runtime's antialiasing takes three times as
    long: here, neighboring columns become channels of one pixel, which are sampled together and then averaged.

    Returns: the pixels, and the scale back to the image, y and x.
    """
    sides = op.Shape(image, start=0, end=2)
    long_side = op.Cast(op.ReduceMax(sides), to=1)  # (1,)
    scale = op.Min(long_side_px / long_side, op.Max(1.0, op.Min(4.0, 144.0 / long_side)))
    size = op.Cast(op.Max(op.Round(op.Cast(sides, to=1) * scale), 1.0), to=7)
    rows, columns = op.Split(size, num_outputs=2)
    across = op.Min(op.Max(op.Cast(1.0 / scale, to=7), 1), sides[1:])
    down = op.Min(across, 2)
    groups = sides[1:] / across
    width = groups * across
    pixels = op.Reshape(op.Slice(image, [0], width, [1]), op.Concat([1], sides[:1], groups, [-1], axis=0))
    sampled_size = op.Concat([1], rows * down, columns, 3 * across, axis=0)
    sampled = op.Squeeze(op.Resize(pixels, None, None, sampled_size, mode="linear"), [0])
    planes = op.Cast(op.Transpose(sampled, perm=[2, 0, 1]), to=1)
    mean = op.Tile(op.Constant(value=_BGR), op.Concat([1], across, axis=0)) / op.Cast(across, to=1)
    bgr = op.MatMul(mean, op.Reshape(planes, op.Concat(3 * across, [-1], axis=0)))
    lines = op.Reshape(bgr, op.Concat([1, 3], rows * down, columns, axis=0))
    reduced = op.Resize(lines, None, None, op.Concat([1, 3], size, axis=0), mode="linear")
    return reduced, op.Cast(op.Concat(sides[:1], width, axis=0), to=1) / op.Cast(size, to=1)


@script()
def grid_rows(
    cls: FLOAT[1, "cells", 1], obj: FLOAT[1, "cells", 1], bbox: FLOAT[1, "cells", 4], kps: FLOAT[1, "cells", 10],
    columns: INT64[1], stride: FLOAT, threshold: FLOAT,
) -> FLOAT["faces", 15]:  # fmt: skip
    """Decode the cells of one grid with at least this score: x, y, width, height, landmarks (x, y), score."""
    scores = op.Sqrt(op.Clip(op.Reshape(cls, [-1]), 0.0, 1.0) * op.Clip(op.Reshape(obj, [-1]), 0.0, 1.0))
    cells = op.Reshape(op.NonZero(scores >= threshold), [-1])
    origin = op.Cast(op.Concat(op.Unsqueeze(cells % columns, [1]), op.Unsqueeze(cells / columns, [1]), axis=1), to=1)
    box = op.Gather(op.Reshape(bbox, [-1, 4]), cells)
    size = op.Exp(box[:, 2:]) * stride
    corner = (origin + box[:, :2]) * stride - size / 2.0
    points = op.Reshape(op.Gather(op.Reshape(kps, [-1, 10]), cells), [-1, 5, 2])
    landmarks = op.Reshape((points + op.Unsqueeze(origin, [1])) * stride, [-1, 10])
    return op.Concat(corner, size, landmarks, op.Unsqueeze(op.Gather(scores, cells), [1]), axis=1)


@script()
def suppressed(rows: FLOAT["faces", 15], boxes: FLOAT["faces", 4], iou: FLOAT) -> FLOAT["kept", 15]:
    """Keep the best of overlapping faces (non-maximum suppression), best first."""
    corners = op.Concat(boxes[:, :2], boxes[:, :2] + boxes[:, 2:], axis=1)
    scores = op.Reshape(rows[:, 14], [1, 1, -1])
    chosen = op.NonMaxSuppression(op.Unsqueeze(corners, [0]), scores, [5000], iou)
    return op.Gather(rows, chosen[:, 2])


@script()
def plausible(faces: FLOAT["faces", 15], sides: FLOAT[2]) -> BOOL["faces"]:
    """Tell which rows can be faces: finite, not huge, inside of the image, with eyes apart."""
    corner, size, eyes = faces[:, :2], faces[:, 2:4], faces[:, 6:8] - faces[:, 4:6]
    inside = op.Min(corner + size, op.Gather(sides, [1, 0])) > op.Max(corner, 0.0)
    usual = op.And(inside, op.And(size > 0.0, size <= 3.0 * op.ReduceMax(sides)))
    finite = op.Abs(op.ReduceSum(faces, [1], keepdims=0)) < 1e9
    apart = op.ReduceSum(eyes * eyes, [1], keepdims=0) >= 1.0
    return op.And(op.And(op.ReduceMin(op.Cast(usual, to=1), [1], keepdims=0) > 0.0, apart), finite)


@script()
def one_pass(image: UINT8["height", "width", 3], long_side_px: FLOAT, threshold: FLOAT) -> FLOAT["faces", 15]:
    """Run the detector on the reduced image; faces are in pixels of the image itself."""
    small, scale = resized(image, long_side_px)
    size = op.Shape(small, start=2)
    padded = op.Max((size + 31) / 32 * 32, [64, 64])
    blob = op.Pad(small, op.Concat([0, 0, 0, 0, 0, 0], padded - size, axis=0))
    c8, c16, c32, o8, o16, o32, b8, b16, b32, k8, k16, k32 = networks.detector(blob, threshold)
    columns = padded[1:]
    fine = grid_rows(c8, o8, b8, k8, columns / 8, 8.0, threshold)
    middle = grid_rows(c16, o16, b16, k16, columns / 16, 16.0, threshold)
    coarse = grid_rows(c32, o32, b32, k32, columns / 32, 32.0, threshold)
    rows = op.Concat(fine, middle, coarse, axis=0)
    whole = op.Floor(op.Abs(rows[:, :4])) * op.Sign(rows[:, :4])  # whole pixels, as OpenCV suppresses
    kept = suppressed(rows, whole, 0.3)
    sides = op.Cast(op.Shape(image, start=0, end=2), to=1)
    xy = op.Gather(scale, [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
    faces = kept * op.Concat(xy, op.Constant(value_floats=[1.0]), axis=0)
    return op.Compress(faces, plausible(faces, sides), axis=0)


@script()
def search(photo: UINT8["height", "width", 3], threshold: FLOAT, live: BOOL) -> FLOAT["faces", 15]:
    """Find faces, best first, in up to four passes of a loop, whose body has the network once.

    Where the first found only small faces or none, there are a very small and a larger one; where these found none, a
    last one at another size. `live`: the first is smaller, for frames of a stream.
    """
    long_side = op.ReduceMax(op.Cast(op.Shape(photo, start=0, end=2), to=1), keepdims=0)
    first_px = op.Where(live, 288.0, 640.0)
    small_px = op.Where(live, 27.0, 40.0)
    is_small = long_side <= first_px  # The larger pass would repeat the first.
    last_px = op.Round(0.75 * op.Min(op.Max(long_side, 144.0), first_px))
    third_px = op.Where(is_small, last_px, 1600.0)
    pass_px = op.Concat(op.Reshape(first_px, [1]), [160.0], op.Reshape(third_px, [1]), op.Reshape(last_px, [1]), axis=0)
    faces = op.Constant(value=_NO_FACES)
    for index in range(4):
        faces = op.Concat(faces, one_pass(photo, op.Gather(pass_px, index), threshold), axis=0)
        found_any = op.Size(faces) > 0
        side = op.ReduceMin(op.Concat(op.Reshape(faces[:, 2:4], [-1]), op.Reshape(long_side, [1]), axis=0), keepdims=0)
        are_large = op.And(found_any, side * op.Min(1.0, 640.0 / long_side) >= small_px)
        first, second, third = index == 0, index == 1, index == 2
        has_enough = op.Or(op.And(first, are_large), op.And(second, op.And(is_small, found_any)))
        is_done = op.Or(has_enough, op.And(third, op.Or(is_small, found_any)))
        if is_done:
            break
    return suppressed(faces, faces[:, :4], 0.4)


@script()
def largest(faces: FLOAT["faces", 15], max_faces: INT64) -> FLOAT["kept", 15]:
    """Sort by area, the largest first, without faces below 10 px, and keep `max_faces`."""
    large = op.Compress(faces, op.ReduceMin(faces[:, 2:4], [1], keepdims=0) >= 10.0, axis=0)
    _, order = op.TopK(large[:, 2] * large[:, 3], op.Min(op.Shape(large, start=0, end=1), op.Reshape(max_faces, [1])))
    return op.Gather(large, order)


@script()
def inverse_similarity(points: FLOAT["faces", 5, 2]) -> FLOAT["faces", 4]:
    """Similarity from the crop to the photo (Umeyama 1991) as real and imaginary factor, and its center x, y."""
    center = op.ReduceMean(points, [1])
    source = points - center
    x, y = op.Split(source, num_outputs=2, axis=2)
    template_x, template_y = op.Split(op.Constant(value=_TEMPLATE), num_outputs=2, axis=1)
    real = op.ReduceSum(x * template_x + y * template_y, [1], keepdims=0)
    imaginary = op.ReduceSum(x * template_y - y * template_x, [1], keepdims=0)
    # the inverse of the factor is its conjugate over its squared length
    inverse = op.Concat(real, 0.0 - imaginary, axis=1) * op.Squeeze(op.ReduceSum(source * source, [1, 2]), [2])
    length = real * real + imaginary * imaginary
    return op.Concat(inverse / op.Max(length, 1e-12), op.Squeeze(center, [1]), axis=1)


@script()
def aligned(image: UINT8["height", "width", 3], inverse: FLOAT[4]) -> FLOAT[3, 112, 112]:
    """Cut one face: its region is reduced by a mean over whole pixels, and sampled bilinearly; edges are repeated.

    Channels come first, so that all arrays are added and multiplied along long rows, which is ten times as fast.
    """
    x = op.Constant(value=_X) * inverse[0] - op.Constant(value=_Y) * inverse[1] + inverse[2]  # (12544,), in the image
    y = op.Constant(value=_Y) * inverse[0] + op.Constant(value=_X) * inverse[1] + inverse[3]
    scale = op.Sqrt(op.ReduceSumSquare(inverse[:2], keepdims=0))
    size = op.Shape(image, start=0, end=2)  # y, x, as all pairs below
    margin = 2.0 + 2.0 * scale
    low = op.Cast(op.Floor(op.Concat(op.ReduceMin(y), op.ReduceMin(x), axis=0) - margin), to=7)
    high = op.Cast(op.Ceil(op.Concat(op.ReduceMax(y), op.ReduceMax(x), axis=0) + margin), to=7)
    start = op.Min(op.Max(low, 0), size - 1)
    extent = op.Min(op.Max(high, start + 1), size) - start
    shrink = op.Min(op.Max(op.Cast(scale, to=7), 1), op.ReduceMin(extent))  # (1,)
    shape = extent / shrink
    region = op.Slice(image, start, start + shape * shrink, [0, 1])
    planes = op.Cast(op.Transpose(region, perm=[2, 0, 1]), to=1)
    bands = op.ReduceMean(op.Reshape(planes, op.Concat(3 * shape[:1], shrink, [-1], axis=0)), [1], keepdims=0)
    means = op.ReduceMean(op.Reshape(bands, op.Concat([-1], shrink, axis=0)), [1], keepdims=0)
    pixels = op.Transpose(op.Reshape(means, [3, -1]))
    step = op.Cast(shrink, to=1)
    shift = op.Cast(start, to=1) + (step - 1.0) / 2.0
    last = op.Cast(shape - 1, to=1)
    across, down = op.Clip((x - shift[1]) / step, 0.0, last[1]), op.Clip((y - shift[0]) / step, 0.0, last[0])
    left, top = op.Floor(across), op.Floor(down)
    near, far = op.Cast(left, to=7), op.Cast(op.Min(left + 1.0, last[1]), to=7)
    above = op.Cast(top, to=7) * shape[1]
    below = op.Cast(op.Min(top + 1.0, last[0]), to=7) * shape[1]
    corners = op.Gather(pixels, op.Concat(above + near, above + far, below + near, below + far, axis=0))
    upper_left, upper_right, lower_left, lower_right = op.Split(op.Transpose(corners), num_outputs=4, axis=1)
    upper = upper_left + (upper_right - upper_left) * (across - left)
    lower = lower_left + (lower_right - lower_left) * (across - left)
    return op.Reshape(op.Round(upper + (lower - upper) * (down - top)), [3, 112, 112])


@script()
def softness(gray: FLOAT["faces", 1, 112, 112]) -> FLOAT["faces", 1]:
    """Standard deviation of the blur in pixels of the crop; see `data.quality.softness_px`."""
    means = op.Floor(op.AveragePool(gray, kernel_shape=[2, 2], strides=[2, 2]) + 0.5)
    half = op.Pad(means, [0, 0, 5, 5, 0, 0, 5, 5], mode="reflect")
    blurred = op.Round(op.Conv(op.Conv(half, op.Constant(value=_BLURS)), op.Constant(value=_BLURS_DOWN), group=2))
    across = blurred[:, :, :, 2:] - blurred[:, :, :, :-2]
    down = blurred[:, :, 2:, :] - blurred[:, :, :-2, :]
    energy = op.ReduceSumSquare(across, [2, 3], keepdims=0) + op.ReduceSumSquare(down, [2, 3], keepdims=0) + 1e-9
    ratio = energy[:, :1] / energy[:, 1:]
    excess = ratio * ratio - 1.0
    px = op.Sqrt(op.Max(_REBLUR / op.Max(excess, 1e-3) - _SMOOTHED, 0.0))
    return op.Where(excess < 1e-3, MAX_BLUR_PX, op.Min(px, MAX_BLUR_PX))


@script()
def cover_logits(crops: FLOAT["faces", 3, 112, 112]) -> FLOAT["faces", 1]:
    """Log odds that a part of the face is covered; see `data.quality.cover_logit`."""
    small = op.Floor(op.AveragePool(crops, kernel_shape=[4, 4], strides=[4, 4]) + 0.5)
    gray = op.Conv(small, op.Constant(value=_LUMA))
    inside = gray[:, :, 4:26, 3:25]
    deviation = inside - op.ReduceMean(inside, [2, 3])
    contrast = op.Sqrt(op.ReduceMean(deviation * deviation, [2, 3]))
    luminance = (gray - op.ReduceMean(inside, [2, 3])) / (contrast + 4.0)
    wide = op.Pad(luminance, [0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")
    across = op.Abs(wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2])
    down = op.Abs(wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1])
    red, blue = (small[:, :1] - gray) / 16.0, (small[:, 2:] - gray) / 16.0
    coarse = op.AveragePool(op.Concat(across, down, red, blue, axis=1), kernel_shape=[2, 2], strides=[2, 2])
    features = op.Concat(op.Flatten(luminance[:, :, 5:28, 2:26]), op.Flatten(coarse[:, :, 2:14, 1:13]), axis=1)
    weights, bias = op.Cast(op.Constant(value=_HIDDEN), to=1), op.Cast(op.Constant(value=_HIDDEN_BIAS), to=1)
    hidden = op.Relu(op.MatMul(features, weights) + bias)
    output, last = op.Cast(op.Constant(value=_OUTPUT), to=1), op.Cast(op.Constant(value=_OUTPUT_BIAS), to=1)
    logits = op.ReduceSum(hidden * output, [1]) + last
    return op.Min(logits, MAX_COVERED)


@script()
def yaw_degrees(points: FLOAT["faces", 5, 2]) -> FLOAT["faces", 1]:
    """Turn of the head; see `data.quality.head_pose`."""
    left, right, nose, mouth = points[:, 0], points[:, 1], points[:, 2], points[:, 3] + points[:, 4]
    across = (right - left + points[:, 4] - points[:, 3]) / 2.0
    width = op.Max(op.ReduceL2(across, [1]), 1e-3)
    off = op.ReduceSum((nose - (left + right + mouth) / 4.0) * across, [1]) / width
    return op.Round(op.Atan(off * _MM / width) * 572.9578) / 10.0


def photo_function(manifest: Manifest) -> Any:
    """The function of the whole graph with the calibration of one model."""
    threshold, temperature, votes = manifest.confidence_threshold, manifest.temperature, manifest.agreement
    votes_temperature = votes.temperature if votes else 1.0
    votes_offsets = _tensor(votes.offsets if votes else [np.nan] * len(manifest.labels))

    @script()
    def photo_to_faces(
        photo: UINT8["height", "width", 3], max_faces: INT64, score_threshold: FLOAT, live: BOOL,
        prior_correction: FLOAT["labels"],
    ) -> tuple[
        FLOAT["faces", 4], FLOAT["faces", 5, 2], FLOAT["faces"], FLOAT["faces", "labels"], FLOAT["faces"],
        FLOAT["faces", 5], BOOL["faces"], BOOL["faces", 6],
    ]:  # fmt: skip
        found = largest(search(photo, score_threshold, live), max_faces)
        count = op.Shape(found, start=0, end=1)
        # one row at least, since not every provider runs empty batches; it is taken off at the end
        rows = op.Pad(found, op.Concat([0, 0], op.Max(1 - count, 0), [0], axis=0))
        points = op.Reshape(rows[:, 4:14], [-1, 5, 2])
        inverse = inverse_similarity(points)

        @graph()
        def crop_one(row: FLOAT[4]):
            crop = aligned(photo, row)
            return crop

        planes = op.Scan(inverse, body=crop_one, num_scan_inputs=1)
        if op.Squeeze(count > 0):
            logits = networks.classifier(op.Transpose(op.Cast(planes, to=2), perm=[0, 2, 3, 1]))
        else:
            logits = op.Unsqueeze(prior_correction, [0])
        gray = op.Floor(op.Conv(planes, op.Constant(value=_LUMA)) + 0.5)
        side_px = _PX * op.ReduceL2(inverse[:, :2], [1])
        width_px = FACE_SHARE * side_px
        soft = softness(gray)
        resampled = _RESAMPLED + _RESAMPLED_SHARE * _PX / side_px
        blur = op.Sqrt(op.Max(soft * soft - resampled * resampled, 0.0))
        yaw = yaw_degrees(points)
        brightness = op.ReduceMean(gray, [2, 3], keepdims=0) / 255.0
        cover = cover_logits(planes)
        beyond = op.Max(op.Concat(soft - USUAL_SOFTNESS_PX, blur, op.Abs(yaw) - USUAL_YAW, cover, axis=1), 0.0)
        factor = op.Max(1.0 + op.ReduceSum(beyond * op.Constant(value=_SLOPES), [1]), 1.0)
        scaled = logits / temperature + prior_correction
        softened = op.Softmax(scaled / factor, axis=1)
        natural = op.LogSoftmax(scaled, axis=1) - prior_correction
        scaled_votes = natural / votes_temperature + op.Constant(value=votes_offsets)
        shares = op.Softmax(scaled_votes / (1.0 + VOTES_SOFTENING * (factor - 1.0)), axis=1)
        likely, ranked = op.TopK(softened, [2])
        doubts = op.Concat(
            width_px < _SMALL, blur > _BLURRED, op.Abs(yaw) > _TURNED, brightness < _DARK, cover > _COVERED,
            likely[:, :1] < AMBIGUOUS_BELOW * likely[:, 1:], axis=1,
        )  # fmt: skip
        agreed = op.Squeeze(op.GatherElements(shares, ranked[:, :1], axis=1), [1])
        boxes = found[:, :4]
        landmarks = op.Reshape(found[:, 4:14], [-1, 5, 2])
        detection_scores = found[:, 14]
        probabilities = op.Slice(softened, [0], count)
        agreement = op.Slice(agreed, [0], count)
        quality = op.Slice(op.Concat(width_px, blur, yaw, brightness, cover, axis=1), [0], count)
        uncertain = op.Slice(likely[:, 0] < threshold, [0], count)
        reasons = op.Slice(doubts, [0], count)
        return boxes, landmarks, detection_scores, probabilities, agreement, quality, uncertain, reasons

    return photo_to_faces


def network_function(name: str, model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.FunctionProto:
    """Turn a released graph into a function, whose initializers are constants."""
    inputs = [value.name for value in model.graph.input]
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
        if tensor.name not in inputs
    ]
    nodes = [*constants, *model.graph.node]
    return helper.make_function(networks.domain, name, inputs, outputs, nodes, list(model.opset_import))


def photo_graph(
    manifest: Manifest, classifier: onnx.ModelProto, detector: onnx.ModelProto, *, score_threshold: float
) -> onnx.ModelProto:
    """Merge the two networks of a release and all code around them into one graph.

    Args:
        manifest: of the classifier; its calibration becomes part of the graph.
        classifier: crops to logits, of any precision.
        detector: the built-in one, with YuNet's outputs.
        score_threshold: default of the input with this name.
    """
    model = photo_function(manifest).to_model_proto(ir_version=_IR_VERSION)
    model.functions.append(network_function("detector", detector, DETECTOR_OUTPUTS))
    model.functions.append(network_function("classifier", classifier, [LOGITS]))
    model.opset_import.append(helper.make_opsetid(networks.domain, networks.version))
    merged = ir.from_proto(inliner.inline_local_functions(model))
    # Weights stay in the body or branch that uses them: elsewhere, ONNX Runtime does not optimize their convolutions.
    ir.passes.Sequential(
        passes.ShapeInferencePass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(size_limit=2**30),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
    )(merged)
    model = ir.to_proto(merged)
    correction = np.array(manifest.prior_correction, np.float32)
    defaults = {"max_faces": np.array(MAX_FACES), "score_threshold": np.array(score_threshold, np.float32)}
    defaults |= {"live": np.array(False), "prior_correction": correction}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in defaults.items())
    shapes = {
        "boxes": [4],
        "landmarks": [5, 2],
        "probabilities": [len(manifest.labels)],
        "quality": [5],
        "reasons": [6],
    }
    for output in model.graph.output:
        shape = ["faces", *shapes.get(output.name, [])]
        output.type.CopyFrom(helper.make_tensor_type_proto(output.type.tensor_type.elem_type, shape))
    del model.graph.value_info[:]
    about = {"labels": manifest.labels, "reasons": quality.REASONS, "model": [manifest.name]}
    helper.set_model_props(model, {name: ",".join(values) for name, values in about.items()})
    onnx.checker.check_model(model)
    return model
