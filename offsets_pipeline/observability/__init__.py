"""Warnings and metrics for operators."""
