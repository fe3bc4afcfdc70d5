"""The interactive terminal of `treadle chat` and `treadle attach`: input, menus, pickers, questions and status line."""
