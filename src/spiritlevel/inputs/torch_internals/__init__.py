"""torch's insides: every private name the package uses, each behind a function with a public way where it is missing.

Nothing outside this room names a private part of torch.  A release that renames one makes measuring slower, or sends a
layer the general way; it never makes a number wrong, nor the package unimportable.
"""
