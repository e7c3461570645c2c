"""Labeling of folders and videos: scan, label, journal, render.

The journal (SQLite) is the only state. The scan stores inputs in it, workers label what is missing, and every output is
rendered from it, sorted by name. Therefore a run that was killed and resumed produces the same bytes as an
uninterrupted one.
"""
