"""Assay's ledger: an append-only log of signed claims about agents, their training and their tests."""
