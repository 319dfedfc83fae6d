"""AMQP 1.0 without input or output: bytes and the time go in, bytes and events come out."""
