"""What an agent knows: context, agents, skills, memory and helpers."""
