"""The project as DVC sees it: stages, files, cache and remote. Nothing else imports DVC."""
