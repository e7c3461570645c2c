"""Expressions and probabilities in words, the same in pictures, reports and the terminal."""

from app.inference.pipeline import LabeledFace


def percent(probability: float) -> str:
    """Return a probability as a whole percentage; never as a certainty: 0.998 is `>99%`."""
    return ">99%" if probability >= 0.995 else f"{probability:.0%}"


def spoken(face: LabeledFace) -> str:
    """Return a face in words: `happiness 92%`, or `uncertain (sadness 31%)`."""
    words = f"{face.label} {percent(face.confidence)}"
    return f"uncertain ({words})" if face.uncertain else words
