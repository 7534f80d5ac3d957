"""The fold: from rows of the log to facts about the state, and from those to the state tables."""
