"""The operations of a network that are curved themselves, and their local second derivatives."""
