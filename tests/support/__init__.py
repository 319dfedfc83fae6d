"""What the tests of a running server share: the process, its clients, waiting with a deadline."""
