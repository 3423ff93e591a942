"""The trace scanner: which FlashInfer calls of the installed SGLang torch.compile can't trace.

Travels to the host as a zip (`remote/probe.py`) and runs in an interpreter of its own, the host's,
with the venv's packages: the patches' hooks act in it as they do in a server. Imports the standard
library, torch, FlashInfer's own dependencies and FlashInfer.
"""
