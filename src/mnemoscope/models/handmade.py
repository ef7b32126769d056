"""x."""
HANDMADE=()
def build(name):
    raise NotImplementedError
