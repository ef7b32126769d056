"""x."""
def infer(model):
    raise NotImplementedError
