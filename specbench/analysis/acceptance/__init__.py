"""How drafts were accepted: figures of a row, other tools' definitions of them, and curves over the draft length."""
