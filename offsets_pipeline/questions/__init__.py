"""Answers: where consumers stand, how far behind, where they stood, and why."""
