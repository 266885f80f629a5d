"""Measures, one family a file, each declared once."""
