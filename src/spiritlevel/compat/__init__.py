"""Classes shaped like those of other packages, so that existing scripts run by changing one import."""
