"""Looking at runs from outside: views, timelines and diagnoses, made from the log alone."""
