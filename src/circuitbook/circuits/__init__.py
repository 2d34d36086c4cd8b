"""The tools of circuit research, one for each question, all on hooks of the course's model."""
