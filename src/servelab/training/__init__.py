"""How the draft head that ships with the course came about, and how to train another."""
