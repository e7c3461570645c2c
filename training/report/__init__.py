"""Report about runs: one HTML page with curves, metrics, calibration, mistakes and attention maps.

python -m training.report RUN... --data KIND=ROOT --out report.html
"""
