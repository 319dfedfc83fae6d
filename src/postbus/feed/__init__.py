"""The change feed: the records of a journal, for readers outside the broker."""
