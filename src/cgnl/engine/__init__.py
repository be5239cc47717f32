"""Train, evaluate and predict. The only room that knows Lightning."""
