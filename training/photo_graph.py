"""One ONNX graph from the pixels of a photo to its faces with calibrated expressions.

The graph holds what serving does after decoding: the search of the detector, alignment by five landmarks, the
classifier, calibration, softening by quality, and agreement. A browser, a GPU and any other language run it with
ONNX Runtime alone (docs/onnx.md). `mien export` writes it beside the graphs of the crop.

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

from mien.data.contract import CROP_PX, TEMPLATE_PX
from mien.data.quality import MAX_BLUR_PX, SLOPES, USUAL_SOFTNESS_PX, USUAL_YAW, VOTES_SOFTENING, constants
from mien.models.detector.manifest import OUTPUTS
from mien.models.manifest import Manifest

networks: Final = Opset("mien.networks", 1)
_IR_VERSION: Final = 10
MAX_FACES: Final = 200  # default of the input, as of serving


def _tensor(values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype))


_TEMPLATE_CENTER: Final = np.mean(TEMPLATE_PX, axis=0)
_TEMPLATE: Final = _tensor(np.array(TEMPLATE_PX) - _TEMPLATE_CENTER)  # (5, 2), centered
_CENTER: Final = _tensor(_TEMPLATE_CENTER)
_LUMA: Final = _tensor(np.array([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1))


def _gaussian(radius: int, sigma: float) -> Any:
    """(11,) kernel of a Gaussian blur that reaches `radius` pixels."""
    x = np.arange(-5, 6)
    kernel = np.where(np.abs(x) <= radius, np.exp(-(x**2) / (2 * sigma**2)), 0.0)
    return kernel / kernel.sum()


_KERNELS: Final = np.stack([_gaussian(2, 0.5), _gaussian(5, 1.25**0.5)])
_BLURS: Final = _tensor(_KERNELS.reshape(2, 1, 1, 11))
_BLURS_DOWN: Final = _tensor(_KERNELS.reshape(2, 1, 11, 1))
_SLOPES: Final = _tensor(list(SLOPES.values()))
_COVER: Final = constants()["cover"]
_COVER_WEIGHTS: Final = _tensor(np.reshape(_COVER["weights"], (-1, 1)))
_COVER_BIAS: Final = _tensor(_COVER["bias"])
_GRID: Final = _tensor(np.stack(np.meshgrid(np.arange(CROP_PX), np.arange(CROP_PX)), axis=-1).reshape(-1, 2))  # x, y


@script()
def resized(image: UINT8["height", "width", 3], long_side_px: FLOAT[1]) -> UINT8["rows", "columns", 3]:
    """Reduce to a long side of at most `long_side_px`; enlarge tiny images up to four times."""
    sides = op.Cast(op.Shape(image, start=0, end=2), to=1)
    long_side = op.ReduceMax(sides)
    enlargement = op.Max(1.0, op.Min(4.0, 144.0 / long_side))
    scale = op.Min(long_side_px / long_side, enlargement)
    size = op.Cast(op.Max(op.Round(sides * scale), 1.0), to=7)
    sizes = op.Concat(op.Constant(value_ints=[1]), size, op.Constant(value_ints=[3]), axis=0)
    batch = op.Unsqueeze(image, op.Constant(value_ints=[0]))
    return op.Squeeze(
        op.Resize(batch, None, None, sizes, mode="cubic", cubic_coeff_a=-0.3, antialias=1), op.Constant(value_ints=[0])
    )


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
def suppressed(rows: FLOAT["faces", 15], corners: FLOAT["faces", 4], iou: FLOAT) -> FLOAT["kept", 15]:
    """Keep the best of overlapping faces (non-maximum suppression), best first; x1, y1, x2, y2 in `corners`."""
    scores = op.Reshape(rows[:, 14], [1, 1, -1])
    chosen = op.NonMaxSuppression(op.Unsqueeze(corners, [0]), scores, op.Constant(value_ints=[5000]), iou)
    return op.Gather(rows, chosen[:, 2])


@script()
def plausible(faces: FLOAT["faces", 15], sides: FLOAT[2]) -> BOOL["faces"]:
    """Tell which rows can be faces: not huge, inside of the image, with eyes apart."""
    width_height = op.Gather(sides, op.Constant(value_ints=[1, 0]))
    corner, size = faces[:, :2], faces[:, 2:4]
    inside = op.Min(corner + size, width_height) > op.Max(corner, 0.0)
    usual = op.And(inside, op.And(size > 0.0, size <= 3.0 * op.ReduceMax(sides)))
    eyes = faces[:, 6:8] - faces[:, 4:6]
    finite = op.Abs(op.ReduceSum(faces, [1], keepdims=0)) < 1e9
    apart = op.ReduceSum(eyes * eyes, [1], keepdims=0) >= 1.0
    all_usual = op.ReduceMin(op.Cast(usual, to=1), [1], keepdims=0) > 0.0
    return op.And(op.And(all_usual, apart), finite)


@script()
def one_pass(image: UINT8["height", "width", 3], long_side_px: FLOAT[1], threshold: FLOAT) -> FLOAT["faces", 15]:
    """Run the detector on the reduced image; faces are in pixels of the image itself."""
    small = resized(image, long_side_px)
    size = op.Shape(small, start=0, end=2)
    padded = op.Max((size + 31) / 32 * 32, op.Constant(value_ints=[64, 64]))
    zero = op.Constant(value_ints=[0])
    planes = op.Cast(op.Transpose(small, perm=[2, 0, 1]), to=1)
    bgr = op.Gather(planes, op.Constant(value_ints=[2, 1, 0]))
    blob = op.Pad(bgr, op.Concat(zero, zero, zero, zero, padded - size, axis=0))
    c8, c16, c32, o8, o16, o32, b8, b16, b32, k8, k16, k32 = networks.detector(op.Unsqueeze(blob, zero), threshold)
    columns = padded[1:]
    fine = grid_rows(c8, o8, b8, k8, columns / 8, 8.0, threshold)
    middle = grid_rows(c16, o16, b16, k16, columns / 16, 16.0, threshold)
    coarse = grid_rows(c32, o32, b32, k32, columns / 32, 32.0, threshold)
    rows = op.Concat(fine, middle, coarse, axis=0)
    whole = op.Floor(op.Abs(rows[:, :4])) * op.Sign(rows[:, :4])  # whole pixels, as OpenCV suppresses
    kept = suppressed(rows, op.Concat(whole[:, :2], whole[:, :2] + whole[:, 2:], axis=1), 0.3)
    sides = op.Cast(op.Shape(image, start=0, end=2), to=1)
    scale_yx = sides / op.Cast(size, to=1)
    scale = op.Gather(scale_yx, op.Constant(value_ints=[1, 0] * 7))
    faces = kept * op.Concat(scale, op.Constant(value_floats=[1.0]), axis=0)
    return op.Compress(faces, plausible(faces, sides), axis=0)


@script()
def search(photo: UINT8["height", "width", 3], threshold: FLOAT) -> FLOAT["faces", 15]:
    """Find faces, best first: one pass, and a larger and a very small one where it found only small faces or none."""
    first = one_pass(photo, op.Constant(value_floats=[640.0]), threshold)
    long_side = op.ReduceMax(op.Cast(op.Shape(photo, start=0, end=2), to=1), keepdims=0)
    smallest = op.ReduceMin(
        op.Concat(op.Reshape(first[:, 2:4], [-1]), op.Constant(value_floats=[1e9]), axis=0), keepdims=0
    )
    has_faces = op.Size(first) > 0
    if op.And(has_faces, smallest * op.Min(1.0, 640.0 / long_side) >= 40.0):
        faces = op.Identity(first)
    else:
        near = one_pass(photo, op.Constant(value_floats=[160.0]), threshold)
        if long_side > 640.0:
            far = one_pass(photo, op.Constant(value_floats=[1600.0]), threshold)
        else:
            far = first[:0]
        every = op.Concat(first, near, far, axis=0)
        faces = suppressed(every, op.Concat(every[:, :2], every[:, :2] + every[:, 2:4], axis=1), 0.4)
    return faces


@script()
def largest(faces: FLOAT["faces", 15], max_faces: INT64) -> FLOAT["kept", 15]:
    """Sort by area, the largest first, without faces below 10 px, and keep `max_faces`."""
    large = op.Compress(faces, op.ReduceMin(faces[:, 2:4], [1], keepdims=0) >= 10.0, axis=0)
    count = op.Min(op.Shape(large, start=0, end=1), op.Reshape(max_faces, [1]))
    _, order = op.TopK(large[:, 2] * large[:, 3], count)
    return op.Gather(large, order)


@script()
def inverse_similarity(points: FLOAT["faces", 5, 2]) -> FLOAT["faces", 4]:
    """Similarity from the crop to the photo (Umeyama 1991) as real and imaginary factor, and its center x, y."""
    center = op.ReduceMean(points, [1])
    source = points - center
    template = op.Constant(value=_TEMPLATE)
    x, y = op.Split(source, num_outputs=2, axis=2)
    wanted_x, wanted_y = op.Split(template, num_outputs=2, axis=1)
    real = op.ReduceSum(x * wanted_x + y * wanted_y, [1], keepdims=0)
    imaginary = op.ReduceSum(x * wanted_y - y * wanted_x, [1], keepdims=0)
    # the inverse of the factor is its conjugate over its squared length
    inverse = op.Concat(real, 0.0 - imaginary, axis=1) * op.Squeeze(op.ReduceSum(source * source, [1, 2]), [2])
    length = real * real + imaginary * imaginary
    return op.Concat(inverse / op.Max(length, 1e-12), op.Squeeze(center, [1]), axis=1)


@script()
def aligned(image: UINT8["height", "width", 3], inverse: FLOAT[4]) -> UINT8[112, 112, 3]:
    """Cut one face: its region is reduced by a mean over whole pixels, and sampled bilinearly; edges are repeated."""
    offset = op.Constant(value=_GRID) - op.Constant(value=_CENTER)
    across = offset * inverse[0]
    turned = op.Gather(offset, op.Constant(value_ints=[1, 0]), axis=1) * inverse[1]
    points = across + turned * op.Constant(value_floats=[-1.0, 1.0]) + inverse[2:]  # (12544, 2), x and y in the image
    scale = op.Sqrt(op.ReduceSumSquare(inverse[:2], keepdims=0))
    size = op.Gather(op.Shape(image), op.Constant(value_ints=[1, 0]))
    margin = 2.0 + 2.0 * scale
    lowest = op.Cast(op.Floor(op.ReduceMin(points, [0], keepdims=0) - margin), to=7)
    highest = op.Cast(op.Ceil(op.ReduceMax(points, [0], keepdims=0) + margin), to=7)
    start = op.Min(op.Max(lowest, 0), size - 1)
    end = op.Min(op.Max(highest, start + 1), size)
    shrink = op.Min(op.Max(op.Cast(scale, to=7), 1), op.ReduceMin(end - start, keepdims=0))
    shape = (end - start) / shrink
    stop = start + shape * shrink
    yx = op.Constant(value_ints=[1, 0])
    region = op.Cast(op.Slice(image, op.Gather(start, yx), op.Gather(stop, yx), [0, 1]), to=1)
    columns, rows, step = shape[:1], shape[1:], op.Reshape(shrink, [1])
    bands = op.ReduceMean(op.Reshape(region, op.Concat(rows, step, [-1], axis=0)), [1], keepdims=0)
    pixels = op.ReduceMean(op.Reshape(bands, op.Concat(rows * columns, step, [3], axis=0)), [1], keepdims=0)
    shift = op.Cast(start, to=1) + (op.Cast(shrink, to=1) - 1.0) / 2.0
    last = op.Cast(shape - 1, to=1)
    place = op.Min(op.Max((points - shift) / op.Cast(shrink, to=1), 0.0), last)
    corner = op.Floor(place)
    part = place - corner
    near, far = op.Cast(corner, to=7), op.Cast(op.Min(corner + 1.0, last), to=7)
    top, bottom = near[:, 1] * columns, far[:, 1] * columns
    right = part[:, :1]
    above = op.Gather(pixels, top + near[:, 0]) * (1.0 - right) + op.Gather(pixels, top + far[:, 0]) * right
    below = op.Gather(pixels, bottom + near[:, 0]) * (1.0 - right) + op.Gather(pixels, bottom + far[:, 0]) * right
    values = above * (1.0 - part[:, 1:]) + below * part[:, 1:]
    return op.Reshape(op.Cast(op.Round(values), to=2), [112, 112, 3])


@script()
def softness(gray: FLOAT["faces", 1, 112, 112]) -> FLOAT["faces"]:
    """Standard deviation of the blur in pixels of the crop; see `data.quality.softness_px`."""
    half = op.Pad(
        op.Floor(op.AveragePool(gray, kernel_shape=[2, 2], strides=[2, 2]) + 0.5),
        op.Constant(value_ints=[0, 0, 5, 5, 0, 0, 5, 5]),
        mode="reflect",
    )
    blurred = op.Round(
        op.Conv(op.Conv(half, op.Constant(value=_BLURS), pads=[0, 0, 0, 0]), op.Constant(value=_BLURS_DOWN), group=2)
    )
    across = blurred[:, :, :, 2:] - blurred[:, :, :, :-2]
    down = blurred[:, :, 2:, :] - blurred[:, :, :-2, :]
    energy = op.ReduceSumSquare(across, [2, 3], keepdims=0) + op.ReduceSumSquare(down, [2, 3], keepdims=0) + 1e-9
    ratio = energy[:, 0] / energy[:, 1]
    excess = ratio * ratio - 1.0
    px = op.Sqrt(op.Max(4.0 / op.Max(excess, 1e-3) - 1.0, 0.0))
    return op.Where(excess < 1e-3, MAX_BLUR_PX, op.Min(px, MAX_BLUR_PX))


@script()
def covered(crops: FLOAT["faces", 3, 112, 112]) -> FLOAT["faces"]:
    """Log odds that eyes or mouth are covered; see `data.quality.cover_features`."""
    small = op.Floor(op.AveragePool(crops, kernel_shape=[4, 4], strides=[4, 4]) + 0.5)
    gray = op.Conv(small, op.Constant(value=_LUMA))
    inside = gray[:, :, 4:26, 3:25]
    mean = op.ReduceMean(inside, [2, 3])
    contrast = op.Sqrt(op.ReduceMean((inside - mean) * (inside - mean), [2, 3]))
    luminance = (gray - mean) / (contrast + 4.0)
    wide = op.Pad(luminance, op.Constant(value_ints=[0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
    across = op.Abs(wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2])
    down = op.Abs(wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1])
    red, blue = (small[:, :1] - gray) / 16.0, (small[:, 2:] - gray) / 16.0
    coarse = op.AveragePool(op.Concat(across, down, red, blue, axis=1), kernel_shape=[2, 2], strides=[2, 2])
    features = op.Concat(op.Flatten(luminance[:, :, 5:28, 2:26]), op.Flatten(coarse[:, :, 2:14, 1:13]), axis=1)
    return op.Reshape(op.MatMul(features, op.Constant(value=_COVER_WEIGHTS)), [-1]) + op.Constant(value=_COVER_BIAS)


@script()
def yaw_degrees(points: FLOAT["faces", 5, 2]) -> FLOAT["faces"]:
    """Turn of the head; see `data.quality.head_pose`."""
    left, right, nose, mouth = points[:, 0], points[:, 1], points[:, 2], points[:, 3] + points[:, 4]
    across = (right - left + points[:, 4] - points[:, 3]) / 2.0
    width = op.Max(op.ReduceL2(across, [1], keepdims=0), 1e-3)
    off = op.ReduceSum((nose - (left + right + mouth) / 4.0) * across, [1], keepdims=0) / width
    return op.Round(op.Atan(off * 56.5 / (width * 24.0)) * 572.9578) / 10.0


def photo_function(manifest: Manifest) -> Any:
    """The function of the whole graph with the calibration of one model."""
    correction, threshold = _tensor(manifest.prior_correction), manifest.confidence_threshold
    temperature = manifest.temperature
    votes = manifest.agreement
    votes_temperature = votes.temperature if votes else 1.0
    votes_offsets = _tensor(votes.offsets if votes else [np.nan] * len(manifest.labels))

    @script()
    def photo_to_faces(
        photo: UINT8["height", "width", 3], max_faces: INT64, score_threshold: FLOAT
    ) -> tuple[
        FLOAT["faces", 4], FLOAT["faces", 5, 2], FLOAT["faces"], FLOAT["faces", "labels"], FLOAT["faces"],
        FLOAT["faces", 5], BOOL["faces"],
    ]:  # fmt: skip
        found = largest(search(photo, score_threshold), max_faces)
        count = op.Shape(found, start=0, end=1)
        # one row at least, since not every provider runs empty batches; it is taken off at the end
        rows = op.Pad(found, op.Concat([0, 0], op.Max(1 - count, 0), [0], axis=0))
        points = op.Reshape(rows[:, 4:14], [-1, 5, 2])
        inverse = inverse_similarity(points)

        @graph()
        def crop_one(row: FLOAT[4]):
            crop = aligned(photo, row)
            return crop

        crops = op.Scan(inverse, body=crop_one, num_scan_inputs=1)
        logits = networks.classifier(crops)
        planes = op.Transpose(op.Cast(crops, to=1), perm=[0, 3, 1, 2])
        gray = op.Floor(op.Conv(planes, op.Constant(value=_LUMA)) + 0.5)
        width_px = 89.6 * op.ReduceL2(inverse[:, :2], [1], keepdims=0)
        soft = softness(gray)
        resampled = 0.93 + 23.744 / (1.25 * width_px)
        blur = op.Sqrt(op.Max(soft * soft - resampled * resampled, 0.0))
        yaw = yaw_degrees(points)
        brightness = op.ReduceMean(gray, [1, 2, 3], keepdims=0) / 255.0
        cover = covered(planes)
        one = op.Constant(value_ints=[1])
        beyond = op.Concat(
            op.Unsqueeze(op.Max(soft - USUAL_SOFTNESS_PX, 0.0), one), op.Unsqueeze(blur, one),
            op.Unsqueeze(op.Max(op.Abs(yaw) - USUAL_YAW, 0.0), one), op.Unsqueeze(op.Max(cover, 0.0), one), axis=1,
        )  # fmt: skip
        factor = op.Max(1.0 + op.ReduceSum(beyond * op.Constant(value=_SLOPES), one), 1.0)
        scaled = logits / temperature + op.Constant(value=correction)
        softened = op.Softmax(scaled / factor, axis=1)
        natural = op.LogSoftmax(scaled, axis=1) - op.Constant(value=correction)
        scaled_votes = natural / votes_temperature + op.Constant(value=votes_offsets)
        shares = op.Softmax(scaled_votes / (1.0 + VOTES_SOFTENING * (factor - 1.0)), axis=1)
        confidence, label = op.TopK(softened, one)
        agreed = op.Squeeze(op.GatherElements(shares, label, axis=1), one)
        below = op.Squeeze(confidence < threshold, one)
        measured = op.Concat(
            op.Unsqueeze(width_px, one), op.Unsqueeze(blur, one), op.Unsqueeze(yaw, one),
            op.Unsqueeze(brightness, one), op.Unsqueeze(cover, one), axis=1,
        )  # fmt: skip
        boxes = found[:, :4]
        landmarks = op.Reshape(found[:, 4:14], [-1, 5, 2])
        detection_scores = found[:, 14]
        zero = op.Constant(value_ints=[0])
        probabilities = op.Slice(softened, zero, count)
        agreement = op.Slice(agreed, zero, count)
        quality = op.Slice(measured, zero, count)
        uncertain = op.Slice(below, zero, count)
        return boxes, landmarks, detection_scores, probabilities, agreement, quality, uncertain

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
    model.functions.append(network_function("detector", detector, OUTPUTS))
    model.functions.append(network_function("classifier", classifier, [manifest.output.name]))
    model.opset_import.append(helper.make_opsetid(networks.domain, networks.version))
    merged = ir.from_proto(inliner.inline_local_functions(model))
    # inlining copies the detector into every pass: its weights are stored once
    ir.passes.Sequential(
        passes.LiftConstantsToInitializersPass(),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(size_limit=2**30),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.ShapeInferencePass(),
    )(merged)
    model = ir.to_proto(merged)
    defaults = {"max_faces": np.array(MAX_FACES), "score_threshold": np.array(score_threshold, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in defaults.items())
    helper.set_model_props(model, {"labels": ",".join(manifest.labels), "model": manifest.name})
    onnx.checker.check_model(model)
    return model
