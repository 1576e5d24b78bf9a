"""`make demo`: the main job on real files, with nothing else running."""
