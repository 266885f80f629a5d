"""What everything else is made of: numbers with their errors, errors in sentences, text made safe, statistics."""
