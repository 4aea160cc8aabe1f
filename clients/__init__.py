"""Assay's clients: the `assay` command, the demo, importers and whatever else talks to the services."""
