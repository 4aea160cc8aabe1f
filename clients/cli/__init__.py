"""The command `assay`: a small file for each group of commands, which imports only what it then needs."""
