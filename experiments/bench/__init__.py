"""Measurements of the audit and the filters."""
