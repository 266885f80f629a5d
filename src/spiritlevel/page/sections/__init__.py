"""The sections of the page, one a file; each returns nothing where its data is not there."""
