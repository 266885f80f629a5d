"""Switches of the whole process, held while a model runs and put back by the last one out."""
