"""Tests of the page's modules."""
