"""The app of a round's processes: its handlers, a clock that can be put ahead, and a watch that tells of stalls."""
