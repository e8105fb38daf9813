"""What trainers take: a folder for each library. They never import each other."""
