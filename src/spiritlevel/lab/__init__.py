"""Networks, data sets, training and studies; nothing that measures imports it."""
