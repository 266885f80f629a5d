"""The same work with Spiritlevel and with its peers: interleaved, repeated, every answer checked."""
