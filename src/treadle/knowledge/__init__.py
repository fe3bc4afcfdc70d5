"""What people have written for agents: agents, skills and AGENTS.md as markdown, and what was remembered."""
