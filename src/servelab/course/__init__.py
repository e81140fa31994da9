"""What a learner meets: predictions, self-tests, quizzes, progress."""
