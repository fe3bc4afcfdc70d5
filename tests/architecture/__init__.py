"""The rules of the layout: folders, imports, sizes and names, checked on the syntax trees of src/treadle."""
