"""Reading checkpoints without executing anything in them."""
