"""The rules of `kit why`: each knows one way in which a run ends or stalls."""
