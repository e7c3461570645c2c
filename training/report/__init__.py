"""Report about runs: one HTML page with curves, metrics, calibration, mistakes and attention maps.

mien report RUN... --data KIND=ROOT --out report.html
"""
