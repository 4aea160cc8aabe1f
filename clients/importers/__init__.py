"""Importers: what other tools recorded, as events. Pure functions from bytes to events; nobody is called."""
