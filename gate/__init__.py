"""Assay's gate: pure checks over the ledger that hold a candidate back until the evidence is there."""
