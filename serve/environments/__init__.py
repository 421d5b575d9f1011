"""Environments that agents learn from: terminal, tool-call, SWE and GUI. README.md here says where what is."""
