"""A report over the results of a sweep: what was chosen, how it compares, what is missing."""
