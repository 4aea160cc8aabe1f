"""Assay's trainer: turns recorded attempts into samples and proposes candidates."""
