"""The command `assay`: small files, one a group of commands; nothing is imported before a command needs it."""
