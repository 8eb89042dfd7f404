"""The app that has the handler and the task, where a worker looks for them."""
