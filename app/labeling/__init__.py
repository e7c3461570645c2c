"""Labeling of folders, archives and videos: scan, label, journal, render.

The journal (SQLite) is the only state. Inputs are scanned into it, workers label what it lacks, and every output is
rendered from it in the order of names, so that a run that was killed and resumed ends in the same bytes as one that
was not.
"""
