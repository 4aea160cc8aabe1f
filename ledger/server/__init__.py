"""The ledger service. Nobody outside imports it: clients speak gRPC, auditors read files."""
