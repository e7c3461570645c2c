"""Text for expressions and probabilities, shared by annotated images, the report and the review."""

from mien.app.inference.records import Face


def percent(probability: float) -> str:
    """Format a probability as a whole percentage, but never as certainty: 0.998 becomes `>99%`."""
    return ">99%" if probability >= 0.995 else f"{probability:.0%}"


def agreement_text(face: Face) -> str:
    """Format the agreement of a face: `about 6 of 10 people would say sadness`; empty if the model cannot tell."""
    return "" if face.agreement is None else f"about {round(10 * face.agreement)} of 10 people would say {face.label}"
