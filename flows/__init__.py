"""Whole runs over the parts: for now the simulated people that talk to a served model (`flows/people/`)."""
