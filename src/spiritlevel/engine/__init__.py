"""How curvature is computed; knows no measure."""
