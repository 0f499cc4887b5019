"""The front: a job's rollouts in the form of OpenAI's API, for agents."""
