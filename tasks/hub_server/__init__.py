"""A local Hugging Face Hub over a folder, for this machine or a team. The real client publishes to it and loads from it.

    server.py               LocalHub: start and stop it
    application.py          the ASGI application: routes, and errors as HTTP answers
    routes_*.py             the Hub's HTTP API as far as huggingface_hub uses it for models and datasets; the web pages
    requests.py             what the routes share: user, repository and revision of a request
    connections.py          limits of connections: number and time
    limits.py               limits on every request: size and host name
    access.py, sessions.py  tokens, permissions and signed upload URLs; sessions of browsers
    store.py                all repositories, by name
    repositories.py         one bare git repository; a commit compares and swaps its parent
    git_objects.py          files and commits in git
    large_files.py          git-lfs objects
    records.py              types: files, commits and the changes of a commit
    names.py                which names are valid
    card_metadata.py        validation of a model card's metadata
    cards.py                a model card as HTML
    errors.py               HubError

It imports nothing from the rest of this project. docs/hub.md describes it for users.
"""
