"""A Hugging Face Hub of our own, over a folder, for this machine or a team: publish and load with the real client.

    store.py               all repositories, by name
    repositories.py        one bare git repository; commits compare and swap their parent
    git_objects.py         what git keeps of it
    records.py             files, commits, and the changes of a commit
    names.py               names that are refused
    large_files.py         the git-lfs objects beside them
    access.py, sessions.py tokens, who may write, signed upload URLs; who has signed in with a browser
    card_metadata.py       what the Hub checks of the metadata of a model card
    cards.py               a model card as a page
    routes_*.py            the Hub's HTTP API, as far as huggingface_hub uses it for models and datasets; the pages
    bounds.py              limits of every request
    application.py         the routes together; refusals as HTTP answers
    server.py              LocalHub: run it

docs/hub.md says what it is and is not.
"""
