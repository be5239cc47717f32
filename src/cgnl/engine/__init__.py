"""Train, evaluate and predict."""
