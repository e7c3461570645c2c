"""Report on runs: one HTML page of curves, metrics, calibration, mistakes and attention maps.

python -m training.report RUN... --data KIND=ROOT --out report.html
"""
