"""What is trained: a task for each agent."""
