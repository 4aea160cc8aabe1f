"""The demonstration: four candidates, one ledger, one gate, one auditor."""
