"""That the network was read rightly: each row alone and in company, each layer against the model itself."""
