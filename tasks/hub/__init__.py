"""A Hugging Face Hub of our own, over a folder, for this machine: publish and load with the real client, offline.

    repositories.py        bare git repositories; commits compare and swap their parent
    records.py             files, commits, and the changes of a commit
    large_files.py         the git-lfs objects beside them
    access.py              tokens, who may write, signed upload URLs
    routes_*.py            the Hub's HTTP API, as far as huggingface_hub uses it for models and datasets
    application.py         the routes together; refusals as HTTP answers
    server.py              LocalHub: run it

Clients run with HF_HUB_DISABLE_XET=1. Not here: xet, pull requests, spaces, organisations' settings, squashing.
"""

from tasks.hub.server import LocalHub

__all__ = ["LocalHub"]
