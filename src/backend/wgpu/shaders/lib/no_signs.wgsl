fn bring_projected(heads: Heads) {}
