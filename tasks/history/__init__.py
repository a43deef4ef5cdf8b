"""Every run of the flow: the log of runs, and the page and the table made from the logs."""
