"""A local Hugging Face Hub over a folder, for this machine or a team. The real client publishes to it and loads from it.

    server.py               LocalHub: start and stop it
    application.py          the ASGI application: routes, and errors as HTTP answers
    routes_*.py             the Hub's HTTP API as far as huggingface_hub uses it for models and datasets; the web pages
    routes_absent.py        what this Hub does not have, answered by 501
    requests.py             what the routes share: user, repository and revision of a request
    connections.py          limits of connections: number and time
    limits.py               limits on every request: size and host name
    forms.py                forms of a browser: its session, and protection from other sites
    access.py, sessions.py  tokens, permissions and signed upload URLs; sessions of browsers
    store.py                all repositories, by name
    repositories.py         one bare git repository; a commit compares and swaps its parent
    git_objects.py          files and commits in git
    git_rules.py            `.gitignore` and `.gitattributes`
    large_files.py          git-lfs objects
    deletion.py             large files that are deleted for good
    descriptions.py         what the API says about a repository
    pull_requests.py        the pull requests of a repository
    discussions.py          a pull request as it is stored: title, status and events
    changes.py              what a pull request changes: commits, diffs, conflicts
    records.py              types: files, commits and the changes of a commit
    names.py                which names are valid
    card_metadata.py        validation of a model card's metadata
    cards.py                a model card as HTML
    trials.py               models that answer texts on their pages
    file_links.py           links from cards and comments to files
    errors.py               HubError

It imports nothing from the rest of this project. docs/hub.md describes it for users.
"""
