"""Report about runs: one HTML page with history, confusion, calibration, slices and mistakes.

mien report RUN... --data KIND=ROOT --out report.html
"""
