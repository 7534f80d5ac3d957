"""Queries of a store: descriptions of groups, facts about the log, retention forecasts, SQL."""
