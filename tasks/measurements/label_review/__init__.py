"""Labels that look wrong: rows of which people are asked, in the report and in review.csv, and their answers."""
