"""A local Hugging Face Hub over a folder, for this machine or a team. The real client publishes to it and loads from it.

    server.py               LocalHub: start and stop it
    application.py          the ASGI application: routes, host names, and errors as HTTP answers
    routes_*.py             the Hub's HTTP API as far as huggingface_hub uses it for models and datasets; the web pages
    requests.py             what the routes share: user, repository and body of a request; forms of a browser
    limits.py               limits of connections and bodies: number, size and time
    access.py               tokens, permissions and signed upload URLs; sessions of browsers
    store.py                all repositories, by name
    repositories.py         one bare git repository; a commit compares and swaps its parent
    git_objects.py          files, commits and the changes of a commit
    large_files.py          git-lfs objects
    reader_shares.py        how much those who cannot write may store in a repository
    pull_requests.py        the pull requests of a repository: as they are stored, what they change, and merges
    names.py                which names are valid
    card_metadata.py        validation of a model card's metadata
    page_templates.py       pages, and a model card or a comment as HTML, with links to files
    trials.py               models that answer texts on their pages
    errors.py               HubError

It imports nothing from the rest of this project but tasks/loopback.py. docs/hub.md describes it for users.
"""
