"""Plans of `offsets reset-offsets`, and the files and brokers that they are made from."""
