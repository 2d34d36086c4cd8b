"""The learner's checks, one module per chapter, loaded when an exercise of it is checked."""
