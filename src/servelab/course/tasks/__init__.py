"""Tasks: one place defines each exercise for notebooks, labs and grading."""
