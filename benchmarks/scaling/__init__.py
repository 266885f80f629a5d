"""How measuring scales: points measured on ranks, workers and large models, and predictions by a formula."""
