"""Models sharded over processes: every rank holds its part of parameters, vectors and bases, and they go in step."""
