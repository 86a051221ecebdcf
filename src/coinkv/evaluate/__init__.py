"""Measuring the methods against each other."""
