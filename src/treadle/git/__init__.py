"""Git repositories, read and changed as files. No module here runs git on a state that a command has touched."""
