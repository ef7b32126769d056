"""How a model is opened and a text is mined: options, their syntax, and the signatures made from them."""
