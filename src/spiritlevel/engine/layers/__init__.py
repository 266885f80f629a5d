"""What layers know of themselves: each sample's gradient from what went in and what is passed back."""
