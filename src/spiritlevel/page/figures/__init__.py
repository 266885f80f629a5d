"""The figures as Altair specifications: one kind a file, drawn on the page, in notebooks and into image files alike."""
