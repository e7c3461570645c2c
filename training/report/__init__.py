"""Report about runs: one HTML page with history, confusion, calibration and mistakes.

mien report RUN... --data KIND=ROOT --out report.html
"""
