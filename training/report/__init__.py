"""What did a run learn, where is it wrong, and which of several is better? One HTML page to look at.

python -m training.report RUN... --data KIND=ROOT --out report.html
"""
