"""Knowledge: agents, skills and AGENTS.md files that people wrote. base.py is the port."""
