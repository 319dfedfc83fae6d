"""The change feed: what the records of a journal say, for whoever reads it from outside."""
