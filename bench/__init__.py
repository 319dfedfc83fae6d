"""How fast Postbus is, measured beside a peer: `make bench`, docs/performance.md."""
