"""One sweep over the data each: outputs and margins, gradients, curvature, and losses at perturbed parameters."""
