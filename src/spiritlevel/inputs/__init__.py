"""What the user hands over, checked: model, data, loss and weights, and how they are run."""
